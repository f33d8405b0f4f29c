"""Fine-tunes BERT to classify film reviews (IMDB, Maas et al. 2011) or tweets (OLID).

    python -m transformer_jax.finetune --config=configs/finetune/sentiment.py:imdb \\
        --config.init_from=DIR --workdir=DIR2 \\
        --config.data.train_files=train.tsv --config.data.valid_files=test.tsv

    argument    tokens of a text   for
    imdb                     512   BERT, with its published values
    imdb-tfds                512   the same, with the set that TFDS has prepared
    imdb-mini                512   bert/imdb.py:mini
    imdb-cpu                 256   bert/imdb.py:cpu and gpt/imdb.py:tiny
    olid                     128   BERT, with its published values
    olid-cpu                  64   bert/imdb.py:cpu

- IMDB's files have lines LABEL<TAB>TEXT, where 1 is positive and 0 negative. `imdb-tfds` reads
  imdb_reviews in `--config.data.tfds_dir=DIR`.
- OLID labels offensive tweets (Zampieri et al. 2019). Its columns are tweet and subtask_a.
- `python -m transformer_jax.download imdb` writes its files to data/imdb, and `download olid` to
  data/olid, where the tweets of the test set have their labels.

Result of `imdb-mini`: an accuracy of 87.4 % after 47 minutes on two CPU cores (one seed).
"""

from transformer_jax.config import choice, experiment

IMDB = dict(examples=25_000, measure="accuracy", task=dict(text="2", label="1", labels=("0", "1")))
OLID = dict(
    examples=13_240,
    measure="macro_f1",
    task=dict(text="tweet", label="subtask_a", labels=("NOT", "OFF")),
)
# examples: number of training examples; length: tokens of a row
TASKS = {
    "imdb": dict(IMDB, length=512, epochs=3, learning_rate=2e-5),
    "imdb-tfds": dict(
        IMDB,
        length=512,
        epochs=3,
        learning_rate=2e-5,
        task=dict(text="text", label="label", labels=("neg", "pos")),
        data=dict(tfds_name="imdb_reviews/plain_text", valid_split="test"),
    ),
    "imdb-cpu": dict(IMDB, length=256, epochs=1, learning_rate=1e-3),
    "imdb-mini": dict(
        IMDB, length=512, epochs=1, learning_rate=4e-4, task=dict(IMDB["task"], group_by_length=8)
    ),
    "olid": dict(OLID, length=128, epochs=3, learning_rate=2e-5),
    "olid-cpu": dict(OLID, length=64, epochs=3, learning_rate=5e-4),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(task=dict(length=32), train=dict(batch=8, num_steps=2))


def get_config(argument="imdb"):
    values = choice(argument, TASKS)
    steps = values["epochs"] * -(-values["examples"] // 32)
    return experiment(
        model=dict(name="bert"),
        task=dict(name="classification", length=values["length"], **values["task"]),
        data=values.get("data", {}),
        train=dict(num_steps=steps, batch=32, log_every=50, eval_every=steps),
        optimizer=dict(
            name="adamw",
            learning_rate=values["learning_rate"],
            schedule="linear",
            # A tenth of the updates, rounded down.
            warmup_steps=steps // 10 / steps,
            weight_decay=0.01,
            clip_norm=1.0,
            eps=1e-6,
        ),
        checkpoint=dict(
            every=steps, keep=1, best_metric=f"valid/{values['measure']}", best_mode="max"
        ),
    )
