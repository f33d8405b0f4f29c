"""Trains a small language model by GRPO on rewards from a Python function.

It takes minutes on a laptop and downloads nothing. It begins with one other run of minutes, the
conversations about translations, and needs no reward model.

    python -m transformer_jax.train --config=configs/chat/quickstart.py --workdir=runs/chat
    python -m transformer_jax.train --config=configs/preferences/quickstart.py \\
        --config.init_from=runs/chat --config.task.reference=runs/chat --workdir=runs/grpo
    echo "How do you say in German: The dog sleeps." | python -m transformer_jax.generate \\
        --workdir=runs/grpo --chat --temperature=0

The reward of a reply is its chrF1 against the translation by the built-in grammar
(transformer_jax/tasks/rl/grammar_reward.py). The progress line shows the mean reward of the replies
and their divergence from runs/chat, in nats a reply. A divergence weighs little here, because the
reward can't be won by a text that is no translation.

Result on 300 held-out questions (float32, one seed): the mean reward rises from 0.364 to 0.382, at
a divergence of 4.0 nats a reply.
"""

from transformer_jax.config import experiment

# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    task=dict(prompt_length=8, max_tokens=4, group_size=2), train=dict(batch=8, num_steps=2)
)


def get_config():
    return experiment(
        model=dict(name="gpt"),
        task=dict(
            name="grammar_reward",
            prompt_length=48,
            max_tokens=32,
            group_size=8,
            unfinished_reward=0.0,
            kl_coefficient=0.02,
            reference_model=tuple(dict(name="gpt").items()),
        ),
        data=dict(corpus="grammar", corpus_size=4000),
        train=dict(num_steps=150, batch=8, log_every=10, eval_every=1 / 3),
        optimizer=dict(
            name="adam",
            schedule="constant",
            warmup_steps=0,
            clip_norm=1.0,
            learning_rate=2e-4,
        ),
        checkpoint=dict(every=1 / 3, best_metric="valid/reward", best_mode="max"),
        decode=dict(batch=64),
    )
