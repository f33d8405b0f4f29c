"""Fine-tunes BERT to find named entities.

    python -m transformer_jax.finetune --config=configs/finetune/ner.py:conll2003 \\
        --config.init_from=DIR --workdir=DIR2 \\
        --config.data.train_files=eng.train --config.data.valid_files=eng.testa \\
        --config.data.test_files=eng.testb

- `conll2003`: CoNLL-2003 (Tjong Kim Sang & De Meulder 2003), as in Devlin et al. 2018, section 5.3;
  `python -m transformer_jax.download conll2003` writes its files to data/conll2003.
- `wikiann-cpu`: WikiANN (Pan et al. 2017), for a small model on a CPU.
- `conll2003,features=last`: freezes the encoder and trains a bidirectional LSTM of two layers on
  its states, as in table 7. Others: embeddings, second-to-last, sum-last-four, concat-last-four,
  sum-all; weighted, for ELMo; concat-embeddings-last, for the encoder of a translation.

A line of a file has a word first and its tag last, in IOB1, IOB2 or BIOES.

BERT base, cased, reaches an F1 of 92.4 on CoNLL's test set. Not yet run here from published
weights.
"""

from transformer_jax.config import choice, experiment

# examples: number of training sentences; length: tokens of a row
TASKS = {
    "conll2003": dict(
        examples=14_041, length=256, epochs=3, learning_rate=5e-5, lstm_width=768, task={}
    ),
    "wikiann-cpu": dict(
        examples=20_000,
        length=64,
        epochs=2,
        learning_rate=1e-3,
        lstm_width=256,
        task=dict(prefix="en:"),
    ),
}
# The variant for tests: it trains in seconds on a CPU.
TINY = dict(task=dict(length=32, lstm_width=16), train=dict(batch=8, num_steps=2))


def get_config(argument="conll2003"):
    name, _, features = argument.partition(",features=")
    values = choice(name, TASKS)
    task = values["task"]
    epochs = values["epochs"]
    learning_rate = values["learning_rate"]
    if features:
        task = task | dict(features=features, lstm_width=values["lstm_width"])
        epochs = 2 * epochs
        learning_rate = 1e-3
    steps = epochs * -(-values["examples"] // 32)
    return experiment(
        model=dict(name="bert"),
        task=dict(name="tagging", length=values["length"], **task),
        train=dict(num_steps=steps, batch=32, log_every=50, eval_every=steps),
        optimizer=dict(
            name="adamw",
            learning_rate=learning_rate,
            schedule="linear",
            # A tenth of the updates, rounded down.
            warmup_steps=steps // 10 / steps,
            weight_decay=0.01,
            clip_norm=1.0,
            eps=1e-6,
        ),
        checkpoint=dict(every=steps, keep=1, best_metric="valid/f1", best_mode="max"),
    )
