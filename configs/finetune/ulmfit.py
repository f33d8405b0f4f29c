"""Classifies texts with a language model, the third stage of ULMFiT (Howard & Ruder 2018).

    python -m transformer_jax.finetune --config=configs/finetune/ulmfit.py:imdb \\
        --config.init_from=runs/reviews --workdir=runs/sentiment \\
        --config.data.train_files=train.tsv --config.data.valid_files=test.tsv

    argument    tokens of a text   for a run of
    imdb                    1400   configs/awd_lstm/imdb.py
    imdb-cpu                 256   configs/awd_lstm/imdb.py:cpu
    trec                      64   configs/awd_lstm/imdb.py, on questions

The files have lines LABEL<TAB>TEXT. The labels of IMDB (Maas et al. 2011) are 1 and 0; those of
TREC-6 (Voorhees & Tice 1999) are any.

The head reads the last state, and maximum and mean of all states. The layers learn one after
another: the head from the first epoch, the highest layer from the second, the embeddings from the
fifth. The rate of a layer is 1 / 2.6 of that of the layer above, and follows a slanted triangle
from the epoch in which the layer begins (sections 3.2 and 3.3). Batch, rate and the 50 epochs are
those of section 4.1.
"""

from transformer_jax.config import choice, experiment

# In the order in which they begin to learn, an epoch each after the head.
LAYERS = ("layer_2", "layer_1", "layer_0", "token_embed")
IMDB = dict(examples=25_000, task=dict(labels=("0", "1")))
# examples: number of training examples; length: tokens of a row
TASKS = {
    "imdb": dict(IMDB, length=1400, epochs=50, batch=64, head_dropout=0.4),
    "imdb-cpu": dict(IMDB, length=256, epochs=6, batch=32, head_dropout=0.1),
    "trec": dict(
        examples=5452, length=64, epochs=50, batch=64, head_dropout=0.4, task=dict(labels=())
    ),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(task=dict(length=32), train=dict(batch=8, num_steps=2))


def get_config(argument="imdb"):
    values = choice(argument, TASKS)
    epochs = values["epochs"]
    steps = epochs * -(-values["examples"] // values["batch"])
    groups = ((layer, (("begin", n / epochs),)) for n, layer in enumerate(LAYERS, 1))
    return experiment(
        model=dict(name="awd_lstm"),
        task=dict(
            name="classification",
            length=values["length"],
            text="2",
            label="1",
            head_kind="concatenation",
            head_dropout=values["head_dropout"],
            group_by_length=8,
            **values["task"],
        ),
        train=dict(num_steps=steps, batch=values["batch"], log_every=50, eval_every=1 / epochs),
        optimizer=dict(
            name="adam",
            learning_rate=0.01,
            schedule="slanted_triangular",
            warmup_steps=0.1,
            b1=0.7,
            b2=0.99,
            layer_decay=1 / 2.6,
            groups=tuple(groups),
        ),
        checkpoint=dict(every=1 / epochs, keep=1, best_metric="valid/accuracy", best_mode="max"),
    )
