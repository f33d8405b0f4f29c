"""A label for a text: film reviews of IMDB (Maas et al. 2011) and offensive tweets of OLID
(Zampieri et al. 2019).

python -m transformer_jax.finetune --config=configs/finetune/sentiment.py:imdb --config.init_from=DIR --workdir=DIR2 \\
    --config.data.train_files=train.tsv --config.data.valid_files=test.tsv

`imdb`: label<TAB>text, 1 positive and 0 negative, or, `imdb-tfds`, the set that TFDS has prepared
in --config.data.tfds_dir=DIR; the first 512 tokens of each review, BERT's hyper-parameters.
`imdb-cpu`: the first 256, for the small models of configs/*/imdb.py:cpu; `imdb-mini`: the first
512, for bert/imdb.py:mini, whose accuracy was 87.4 % after 47 minutes on two CPU cores (one seed).
`olid`: the columns tweet and subtask_a. `olid-cpu`: for the small models.
"""

from transformer_jax.config import choice, experiment

TASKS = {  # training examples, tokens, epochs, learning rate, measure, task
    "imdb": (25_000, 512, 3, 2e-5, "accuracy", dict(text="2", label="1", labels=("0", "1"))),
    "imdb-tfds": (
        25_000,
        512,
        3,
        2e-5,
        "accuracy",
        dict(text="text", label="label", labels=("neg", "pos")),
    ),
    "imdb-cpu": (25_000, 256, 1, 1e-3, "accuracy", dict(text="2", label="1", labels=("0", "1"))),
    "imdb-mini": (
        25_000,
        512,
        1,
        4e-4,
        "accuracy",
        dict(text="2", label="1", labels=("0", "1"), group_by_length=8),
    ),
    "olid": (
        13_240,
        128,
        3,
        2e-5,
        "macro_f1",
        dict(text="tweet", label="subtask_a", labels=("NOT", "OFF")),
    ),
    "olid-cpu": (
        13_240,
        64,
        3,
        5e-4,
        "macro_f1",
        dict(text="tweet", label="subtask_a", labels=("NOT", "OFF")),
    ),
}


def get_config(argument="imdb"):
    examples, length, epochs, rate, measure, task = choice(argument, TASKS)
    steps = epochs * -(-examples // 32)
    return experiment(
        model=dict(name="bert"),
        task=dict(name="classification", length=length, **task),
        data=dict(tfds_name="imdb_reviews/plain_text", valid_split="test")
        if argument == "imdb-tfds"
        else {},
        train=dict(num_steps=steps, batch=32, log_every=50, eval_every=steps),
        optimizer=dict(
            name="adamw",
            learning_rate=rate,
            schedule="linear",
            warmup_steps=steps // 10 / steps,
            weight_decay=0.01,
            clip_norm=1.0,
            eps=1e-6,
        ),
        checkpoint=dict(every=steps, keep=1, best_metric=f"valid/{measure}", best_mode="max"),
    )
