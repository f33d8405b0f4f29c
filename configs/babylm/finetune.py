"""Fine-tunes a model on a task of GLUE or SuperGLUE in the files of the BabyLM challenge.

    python -m transformer_jax.finetune --config=configs/babylm/finetune.py:mnli \\
        --config.init_from=DIR --workdir=DIR2 \\
        --config.data.train_files=mnli.train.jsonl --config.data.valid_files=mnli.valid.jsonl

The argument is TASK or TASK,MODEL. TASK is boolq, mnli, mrpc, multirc, qqp, rte or wsc. MODEL is
that of the run in DIR, such as gpt; the default is bert. The files are JSON lines. The challenge
trains with AdamW at 3e-5, in batches of 32 rows, and of 16 for the long texts of boolq and multirc,
for at most 10 epochs, and 30 for wsc (its evaluation pipeline of 2025). Here the rate decays
linearly after a warm-up, and rows have 128 tokens instead of the 512 of the challenge: as many as
the models of pretrain.py can read, though their own rows have at most 64. The second texts of
multirc and wsc are the questions of the challenge.
"""

from transformer_jax.config import choice, experiment

EPOCHS = 10
TWO = ("0", "1")
# examples: number of training examples in the challenge's files; measure: the score it reports
TASKS = {
    "boolq": dict(examples=9_427, text="passage", pair="question", labels=TWO, batch=16),
    "mnli": dict(examples=10_000, text="premise", pair="hypothesis", labels=("0", "1", "2")),
    "mrpc": dict(examples=3_668, text="sentence1", pair="sentence2", labels=TWO, measure="f1"),
    "multirc": dict(
        examples=10_000,
        text="paragraph",
        pair="Question: {question} Answer: {answer}",
        labels=TWO,
        batch=16,
    ),
    "qqp": dict(examples=10_000, text="question1", pair="question2", labels=TWO, measure="f1"),
    "rte": dict(examples=2_490, text="sentence1", pair="sentence2", labels=TWO),
    "wsc": dict(
        examples=554,
        text="text",
        pair='Does "{span2_text}" refer to "{span1_text}" in this passage?',
        labels=TWO,
        epochs=30,
    ),
}


def TINY(argument="mnli"):
    """Returns the variant for tests: it trains in seconds on a CPU."""
    return dict(task=dict(length=32), train=dict(batch=8, num_steps=2))


def get_config(argument="mnli"):
    name, _, model = argument.partition(",")
    values = choice(name, TASKS)
    batch = values.get("batch", 32)
    per_epoch = -(-values["examples"] // batch)
    return experiment(
        model=dict(name=model or "bert"),
        task=dict(
            name="classification",
            length=128,
            group_by_length=50,  # in random order, half of the positions would be padding
            label="label",
            **{key: values[key] for key in ("text", "pair", "labels")},
        ),
        train=dict(
            num_steps=values.get("epochs", EPOCHS) * per_epoch,
            batch=batch,
            log_every=50,
            eval_every=per_epoch,
        ),
        optimizer=dict(
            name="adamw",
            learning_rate=3e-5,
            schedule="linear",
            warmup_steps=0.1,
            weight_decay=0.01,
            clip_norm=1.0,
        ),
        checkpoint=dict(
            every=per_epoch,
            keep=1,
            best_metric=f"valid/{values.get('measure', 'accuracy')}",
            best_mode="max",
        ),
    )
