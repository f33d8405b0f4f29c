"""Fine-tunes a model of configs/objectives/pretrain.py to summarise functions.

    python -m transformer_jax.finetune --config=configs/objectives/summaries.py --workdir=DIR2 \\
        --config.init_from=DIR \\
        --config.data.train_files=train.jsonl --config.data.valid_files=valid.jsonl

The argument `masked_targets` is for the model of `multitask`; the others are encoder-decoders.
A line of a file is a JSON object with the texts `source` and `target`. `benchmarks/objectives.py`
writes such files of the functions of Python's standard library.
"""

from transformer_jax.config import choice, experiment

# The family of the model by the task.
MODELS = {"text_to_text": "bart", "masked_targets": "bert"}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(
    model=dict(vocab_size=300, d_model=16, d_ff=32, num_heads=2, max_length=96),
    task=dict(source_length=32, target_length=32, scored_examples=2),
    train=dict(batch=8, num_steps=2),
)


def get_config(task="text_to_text"):
    steps = 800
    return experiment(
        model=dict(name=choice(task, MODELS)),
        task=dict(
            name=task,
            source="source",
            target="target",
            source_length=256,
            target_length=96,
            label_smoothing=0.0,
            scored_examples=0,
        ),
        data=dict(tokenizer="roberta_bpe"),
        train=dict(num_steps=steps, batch=8, log_every=50, eval_every=steps),
        optimizer=dict(
            name="adamw",
            learning_rate=1e-3,
            schedule="linear",
            warmup_steps=1 / 10,
            weight_decay=0.01,
            clip_norm=1.0,
            eps=1e-6,
        ),
        checkpoint=dict(every=steps, keep=1),
        decode=dict(beam=1, max_length=50),
    )
