"""Trains a language model on preferences between completions, by DPO or IPO.

    python -m transformer_jax.train --config=configs/preferences/dpo.py:dialogue \\
        --config.init_from=DIR --config.task.reference=DIR --workdir=DIR2 \\
        --config.data.train_files=train.jsonl --config.data.valid_files=valid.jsonl
    python -m transformer_jax.generate --workdir=DIR2 --prompt="The film"

    argument   beta   tokens of a row   for
    dialogue    0.1               512   160,800 pairs of completions (Bai et al. 2022)
    summaries   0.5               512   92,858 pairs of summaries (Stiennon et al. 2020)
    imdb        0.1               128   a run of configs/gpt/imdb.py:tiny, on a CPU

--config.task.objective=ipo takes the loss of Azar et al. 2023 instead. The model in DIR should have
learned the chosen completions, or texts like them, before.

For `dialogue` and `summaries`, beta, batches of 64, RMSprop, the learning rate of 1e-6 and the
warm-up of 150 updates are those of Rafailov et al. 2023, appendix B. Rows, one epoch and clipping
are those of the published code. The values of `imdb` are assumed. None has been trained here.

Dropout is that of the model in DIR; --config.model.dropout=0 switches it off.
"""

from transformer_jax.config import choice, experiment

RMSPROP = dict(name="rmsprop", b2=0.99, eps=1e-8, learning_rate=1e-6, warmup_steps=150)
# examples: number of training pairs
TASKS = {
    "dialogue": dict(examples=160_800, beta=0.1, length=512, batch=64, optimizer=RMSPROP),
    "summaries": dict(examples=92_858, beta=0.5, length=512, batch=64, optimizer=RMSPROP),
    "imdb": dict(
        examples=8000,
        beta=0.1,
        length=128,
        batch=32,
        optimizer=dict(name="adamw", b2=0.98, learning_rate=1e-4, warmup_steps=1 / 10),
    ),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(task=dict(length=32), train=dict(batch=8, num_steps=2), optimizer=dict(warmup_steps=1))


def get_config(argument="dialogue"):
    values = choice(argument, TASKS)
    return experiment(
        model=dict(name="gpt"),
        task=dict(
            name="dpo",
            length=values["length"],
            beta=values["beta"],
            reference_model=tuple(dict(name="gpt").items()),
        ),
        train=dict(
            num_steps=-(-values["examples"] // values["batch"]),  # one epoch
            batch=values["batch"],
            log_every=20,
            eval_every=1 / 4,
        ),
        optimizer=dict(schedule="constant", clip_norm=10.0, **values["optimizer"]),
        checkpoint=dict(every=1 / 4, best_metric="valid/accuracy", best_mode="max"),
    )
