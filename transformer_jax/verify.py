"""Proves that a run was trained as it says: python -m transformer_jax.verify --workdir=DIR
--from=900 --to=1000

The run must have been trained with --config.checkpoint.keep_every, which keeps checkpoints and
writes chain.jsonl. Its files are compared with this chain, and the updates after --from, up to and
including --to, are recomputed. --random=3 picks that many stretches between kept checkpoints. On a
machine of the same kind, all bits must be equal; elsewhere, the losses of the first updates after a
checkpoint must agree up to --tolerance. It prints one JSON object, and ends with 1 if something
differs. docs/verify.md says what this proves.
"""

import json
import sys

from absl import flags

from transformer_jax import cli


def define_flags() -> None:
    cli.define_workdir()
    flags.DEFINE_integer("from", None, "Step of the checkpoint from which updates are recomputed.")
    flags.DEFINE_integer("to", None, "The last update to be recomputed.", lower_bound=1)
    flags.DEFINE_integer("random", 0, "Recompute N stretches, drawn at random.", lower_bound=0)
    flags.DEFINE_integer(
        "seed", None, "Of --random; by default, it differs each time.", lower_bound=0
    )
    flags.DEFINE_float(
        "tolerance", 0.01, "Relative difference of losses on another kind of machine.", 0.0
    )


def main() -> None:
    import numpy as np

    from transformer_jax.pictures.progress import say
    from transformer_jax.runs import verification

    options, overrides = cli.FLAGS, cli.overrides(("mesh.", "data."))
    entries = verification.read(options.workdir)
    seed = np.random.SeedSequence().entropy if options.seed is None else options.seed
    start, end = options["from"].value, options["to"].value
    chosen = verification.stretches(entries, start, end, options.random, seed)
    found = verification.inspect(options.workdir, overrides)
    recomputed = []
    if not found:  # else, what would be recomputed is not what was trained
        recomputed = [
            verification.recompute(options.workdir, each, options.tolerance, overrides)
            for each in chosen
        ]
    for each in recomputed:
        found += each.differences
        same = (
            "bits" if each.exact else f"losses up to {options.tolerance:g}, because {each.because}"
        )
        say(f"updates {each.stretch.start + 1:,} to {each.stretch.start + each.compared:,}: {same}")
    say("\n".join(found) if found else "nothing differs")
    if first := entries[0]["step"]:
        say(f"the chain begins with update {first + 1:,}; nothing is known of those before")
    head = entries[-1]["digest"]
    say(f"chain      {head}")
    content = {
        "verified": not found,
        "differences": found,
        "recomputed": [
            {
                "from": each.stretch.start,
                "to": each.stretch.start + each.compared,
                "exact": each.exact,
                "because": each.because,
            }
            for each in recomputed
        ],
        "chain": head,
    }
    print(json.dumps(content))
    if found:
        sys.exit(1)


if __name__ == "__main__":
    cli.run(main, define_flags)
