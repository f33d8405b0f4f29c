"""Measures zero-shot classification by labels that the training of a small BERT leaves out.

python benchmarks/zero_shot.py --workdir=DIR [--texts=400] [--json=FILE]

It trains both parts of configs/finetune/inference.py in DIR, about two minutes on two idle cores; a
run that was stopped goes on. Then it prints the accuracy on the held-out inference pairs, and on
statements of the test split that have exactly one of the topics "animals", "clothing", "food" and
"vehicles", with its 95 % interval (Wilson 1927). Guessing is right for one statement in four.
"""

import argparse
import json
import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import scipy.stats
from harness import machine

import transformer_jax
from transformer_jax.corpora.grammar import inference

ROOT = pathlib.Path(__file__).parent.parent
CONFIG = str(ROOT / "configs/finetune/inference.py")
# The texts before it chose the config, so they measure nothing.
FIRST = 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=pathlib.Path, required=True)
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    result = measured(trained(options.workdir), options.texts)
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")


def trained(workdir: pathlib.Path) -> pathlib.Path:
    """Returns the workdir of the classifier, after its training and pre-training."""
    origin, run = workdir / "pretrain", workdir / "pairs"
    transformer_jax.train(f"{CONFIG}:pretrain", str(origin))
    transformer_jax.train(f"{CONFIG}:pairs", str(run), overrides={"init_from": str(origin)})
    return run


def measured(run: pathlib.Path, num_texts: int) -> dict:
    """Returns the accuracy on pairs, and that on topics with its interval."""
    task, params = transformer_jax.open_run(str(run))
    labelled = [
        inference.labelled_text(0, "test", index) for index in range(FIRST, FIRST + num_texts)
    ]
    texts, topics = zip(*labelled)
    labels = [*inference.UNSEEN]
    predictions = task.classify(params, texts, labels, hypothesis_template=inference.TEMPLATE)
    num_right = sum(prediction.text == topic for prediction, topic in zip(predictions, topics))
    interval = scipy.stats.binomtest(num_right, num_texts).proportion_ci(method="wilson")
    return {
        "pairs": {"accuracy": task.evaluate(params, "test")["accuracy"]},
        "topics": {
            "accuracy": num_right / num_texts,
            "interval": [interval.low, interval.high],
            "chance": 1 / len(labels),
            "texts": num_texts,
        },
    }


if __name__ == "__main__":
    main()
