"""Rows of noised texts that one core reads in a second, and BERT's rows for comparison.

    python benchmarks/noise.py

Prints one JSON object a line. The text is the documentation of the Python standard library.
"""

import json
import time

from transformer_jax.config import experiment
from transformer_jax.runs.spec import make_task

LENGTH, BATCH, UPDATES = 128, 64, 100
BART = dict(name="bart", vocab_size=4096, max_length=LENGTH)
BERT = dict(name="bert", vocab_size=4096, max_length=LENGTH)
NOISES = {
    "permutation and infilling": (("permutation",), ("infilling",)),
    "infilling": (("infilling",),),
    "masking": (("masking",),),
    "deletion": (("deletion",),),
    "span corruption": (("span_corruption",),),
    "mass": (("mass",),),
    "prefix": (("prefix",),),
}


def tasks():
    """Yields (name of the rows, sections of a config)."""
    for name, noises in NOISES.items():
        lengths = dict(source_length=LENGTH, target_length=LENGTH)
        yield name, dict(model=BART, task=dict(name="denoising", noises=noises, **lengths))
    for name, next_sentence in (("BERT, pairs", 1.0), ("BERT, single texts", 0.0)):
        task = dict(name="masked_lm", phases=((1.0, LENGTH, 20),), next_sentence=next_sentence)
        yield name, dict(model=BERT, task=task)


def rows_a_second(sections) -> float:
    tokenizer = "wordpiece" if sections["model"] is BERT else "roberta_bpe"
    data = dict(corpus="pydoc", tokenizer=tokenizer, mask_documents=True)
    config = experiment(data=data, train=dict(batch=BATCH), **sections)
    train = make_task(config).rows().train
    train.batch(0, range(BATCH))
    started = time.perf_counter()
    for step in range(1, UPDATES + 1):
        train.batch(step, range(BATCH))
    return BATCH * UPDATES / (time.perf_counter() - started)


def main() -> None:
    for name, sections in tasks():
        print(json.dumps({"rows": name, "rows a second": round(rows_a_second(sections))}))


if __name__ == "__main__":
    main()
