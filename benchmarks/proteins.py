"""Measures the quickstart's protein language model on generated families, over three seeds.

python benchmarks/proteins.py --workdir=DIR --json=FILE [--objective=seed-0] [--tiny]
python benchmarks/proteins.py --table --json=FILE

A row is a seed: of the families and their members, of the initial parameters and of the masks.
configs/esm/quickstart.py is trained, then configs/esm/contacts.py on 20 proteins of one family.
A row has the exponentiated cross-entropy (ECE) of masked residues of held-out members, and those of
trigram models of the training proteins: from the two residues before, and from the two neighbours,
which are never masked. It also has the precision of the N likeliest pairs of a protein of N
residues, 6 positions apart or more, in families that the regression has not seen. `places` is the
precision of the pairs that are contacts in most of the 20 proteins. Complete runs are not repeated,
and one that was stopped goes on.

The budget of all rows is {minutes} minutes of one core.
"""

import datetime
import json
import os
import pathlib
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import comparison
import numpy as np
from harness import machine

SEEDS = 3
MINUTES = 30  # of all seeds, on one core
NAMES = [f"seed-{seed}" for seed in range(SEEDS)]
COMMAND = "python benchmarks/proteins.py --workdir=DIR --json=FILE"
TINY = {
    "source.members": 4,
    "source.held_out": 1,
    "train.num_steps": 2,
    "train.batch": 4,
    "decode.batch": 4,
}


def main() -> None:
    flags = comparison.parser(__doc__.format(minutes=MINUTES), NAMES)
    arguments = flags.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.json.read_text())["rows"]))
        return
    for name in arguments.objective or NAMES:
        row = measured(arguments.workdir, name, arguments.tiny)
        comparison.add_rows(arguments.json, [row], "objective", NAMES, COMMAND)


def measured(workdir: pathlib.Path, name: str, tiny: bool) -> dict:
    """Returns the row of a seed."""
    import transformer_jax

    seed = NAMES.index(name)
    keys = dict.fromkeys(("train.seed", "data.seed", "source.seed"), seed)
    keys |= {"data.cache": str(workdir / "cache")} | (TINY if tiny else {})
    runs = {part: workdir / f"{part}-{name}" for part in ("esm", "contacts")}
    began = time.monotonic()
    comparison.train("configs/esm/quickstart.py", runs["esm"], keys)
    comparison.train(
        "configs/esm/contacts.py", runs["contacts"], keys | {"init_from": str(runs["esm"])}
    )
    minutes = (time.monotonic() - began) / 60
    task, params = transformer_jax.open_run(runs["esm"])
    scores = task.evaluate(params, "valid")
    contacts, params = transformer_jax.open_run(runs["contacts"])
    return {
        "objective": name,
        "parameters": task.parameter_counts()["params"],
        "updates": task.config.train.num_steps,
        "minutes": minutes,  # of this start
        "ece": scores["ece"],
        "accuracy": scores["accuracy"],
        **{f"ece_{side}": ngram["ece"] for side, ngram in scores["ngrams"].items()},
        "precision": contacts.evaluate(params, "valid")["precision"],
        "places": contacts_by_position(contacts),
        "proteins": len(contacts.source.records("valid")),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "revision": comparison.revision(),
    }


def contacts_by_position(task) -> float:
    """Returns the precision of the pairs that are contacts in most training proteins."""
    from transformer_jax.data import proteins
    from transformer_jax.families.esm.contacts import likeliest

    train, valid = (proteins.Stored(task.source.records(split)) for split in ("train", "valid"))
    size = int(max(train.sizes.max(), valid.sizes.max()))
    maps = [proteins.contact_map(pairs, size) for _, pairs in train.read(range(len(train)))]
    share = np.mean(maps, axis=0)
    precisions = []
    for residues, pairs in valid.read(range(len(valid))):
        count = len(residues)
        touch = proteins.contact_map(pairs, count)
        chosen = likeliest(share[:count, :count], count, task.min_separation)
        precisions.append(np.mean([touch[i - 1, j - 1] for i, j, _ in chosen]))
    return float(np.mean(precisions))


def table(rows: list[dict]) -> str:
    """Returns the rows as Markdown, with their mean."""
    columns = {
        "ece": "ECE",
        "ece_left": "trigrams, left",
        "ece_both_sides": "trigrams, both sides",
        "precision": "precision of N pairs",
        "places": "of positions alone",
    }
    lines = [[row["objective"], *(f"{row[key]:.3g}" for key in columns)] for row in rows]
    means = [np.mean([row[key] for row in rows]) for key in columns]
    lines.append(["mean", *(f"{mean:.3g}" for mean in means)])
    return comparison.markdown(["", *columns.values()], lines)


if __name__ == "__main__":
    main()
