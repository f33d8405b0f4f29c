"""Repeats the ablation of GPT on IMDB: what do pre-training, the second loss and attention give?

python benchmarks/gpt_ablation.py --text=unsup.txt --data=DIR --workdir=DIR --json=FILE \\
    [--objective=NAME] [--tiny]
python benchmarks/gpt_ablation.py --table --json=FILE

`--text` is IMDB's unlabelled reviews, a sentence a line with a blank line between reviews; every
fiftieth review is held out. `--data` holds imdb/{train,test}.tsv. The four rows are those of table
5 of Radford et al. 2018: the Transformer with the loss of the language model added in fine-tuning,
without pre-training, without the added loss, and an LSTM of one layer in its place. The paper's
LSTM has 2,048 units beside a Transformer of width 768; here it has 344 beside one of width 128,
nearly the same ratio. A row is put into --json as soon as it ends. Complete runs are not repeated,
and a part that was stopped goes on.

The budget on 2 cores, about 3 hours in all:
- pre-training: 2,000 updates of 16 rows of 256 tokens for both models;
- IMDB: an epoch, 782 updates of 32 reviews of at most 256 tokens, 3 seeds, and the whole test set.
"""

import dataclasses
import datetime
import json
import os
import pathlib
import types
from typing import NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import comparison
import transfer
from harness import machine

COMMAND = "python benchmarks/gpt_ablation.py --text=unsup.txt --data=DIR --workdir=DIR --json"
SEEDS = 3
UPDATES = 2000  # of a pre-training
ROWS = {"task.length": 256, "train.batch": 16, "train.num_steps": UPDATES}
LSTM = {"data.corpus": "", "model.vocab_size": 8000, "model.d_model": 344}
TINY = {"model.d_model": 16, "model.vocab_size": 400, "task.sample_tokens": 0}


class Variant(NamedTuple):
    """A row of the table: its pre-training, and the keys of its fine-tuning."""

    label: str
    run: str
    keys: dict


PRETRAININGS = {
    "gpt": ("configs/gpt/imdb.py:tiny", {}),
    "lstm": ("configs/lstm/quickstart.py", LSTM),
}
VARIANTS = {
    "full": Variant("Transformer, auxiliary LM", "gpt", {"task.lm_weight": 0.5}),
    # Trained on the target task directly, as the paper says: without the other loss.
    "scratch": Variant("Transformer, not pre-trained", "gpt", {"train.pretrained": "false"}),
    "plain": Variant("Transformer, no auxiliary LM", "gpt", {}),
    "lstm": Variant("LSTM, auxiliary LM", "lstm", {"task.lm_weight": 0.5}),
}


def main() -> None:
    flags = comparison.parser(__doc__, list(VARIANTS))
    arguments = flags.parse_args()
    if arguments.table:
        return print(table(json.loads(arguments.json.read_text())["rows"]))
    for name in arguments.objective or VARIANTS:
        row = measured(arguments, name)
        print(json.dumps(row), flush=True)
        if arguments.json:
            comparison.add_rows(arguments.json, [row], "objective", list(VARIANTS), COMMAND)


def pretrained(arguments, name: str) -> pathlib.Path:
    """Returns the run of a language model on the reviews, trained here unless it is complete."""
    config, keys = PRETRAININGS[name]
    run = arguments.workdir / name
    reviews = comparison.write_reviews(arguments.text, arguments.workdir / "data", arguments.tiny)
    keys = ROWS | keys | reviews | {"data.cache": arguments.workdir / "cache"}
    if arguments.tiny:
        keys |= TINY | {"train.num_steps": 2}
    # Saved every tenth of the run, so that little is lost if it is stopped.
    comparison.train(config, run, keys | {"train.eval_every": 0.5, "checkpoint.every": 0.1})
    return run


def measured(arguments, name: str) -> dict:
    """Returns the row of a variant."""
    from transformer_jax.runs import spec

    variant = VARIANTS[name]
    run = pretrained(arguments, variant.run)
    options = types.SimpleNamespace(
        init_from=run,
        data=arguments.data,
        workdir=arguments.workdir / "tasks",
        tiny=arguments.tiny,
        seeds=1 if arguments.tiny else SEEDS,
    )
    case = dataclasses.replace(transfer.CASES["imdb"], keys=variant.keys)
    config = spec.read(run).config
    return {
        "objective": name,
        "parameters": spec.make_task(config, run).parameter_counts()["params"],
        "updates": config.train.num_steps,
        "imdb": transfer.fine_tuned(options, arguments.data, name, case),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "revision": comparison.revision(),
    }


def table(rows: list[dict]) -> str:
    """Returns the rows as Markdown."""
    lines = [
        [
            VARIANTS[row["objective"]].label,
            f"{row['parameters']:,}",
            comparison.spread_cell(row["imdb"], 100),
        ]
        for row in rows
    ]
    return comparison.markdown(["model", "parameters", "IMDB accuracy"], lines)


if __name__ == "__main__":
    main()
