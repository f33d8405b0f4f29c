"""Named entities: CoNLL-2003 (Tjong Kim Sang & De Meulder 2003) as in Devlin et al. 2018, section
5.3, and WikiANN (Pan et al. 2017) on a CPU.

python -m transformer_jax.finetune --config=configs/finetune/ner.py:conll2003 --config.init_from=DIR --workdir=DIR2 \\
    --config.data.train_files=eng.train --config.data.valid_files=eng.testa --config.data.test_files=eng.testb

`features=last` and so on, behind a comma, leaves the encoder as it is and trains a two-layer
bidirectional LSTM on its states, as in table 7: embeddings, second-to-last, last, sum-last-four,
concat-last-four, sum-all. Files have a word and, in the last column, its tag, in IOB1, IOB2 or
BIOES. BERT base, cased, reaches an F1 of 92.4 on CoNLL's test set. Not yet run here from published
weights.
"""

from transformer_jax.config import choice, experiment

TASKS = {  # sentences, tokens, epochs, learning rate, task
    "conll2003": (14_041, 256, 3, 5e-5, dict()),
    "wikiann-cpu": (20_000, 64, 2, 1e-3, dict(prefix="en:")),
}


def get_config(argument="conll2003"):
    name, _, features = argument.partition(",features=")
    examples, length, epochs, rate, task = choice(name, TASKS)
    if features:
        task, epochs, rate = (
            task | dict(features=features, lstm_width=768 if length > 64 else 256),
            2 * epochs,
            1e-3,
        )
    steps = epochs * -(-examples // 32)
    return experiment(
        model=dict(name="bert"),
        task=dict(name="tagging", length=length, **task),
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
        checkpoint=dict(every=steps, keep=1, best_metric="valid/f1", best_mode="max"),
    )
