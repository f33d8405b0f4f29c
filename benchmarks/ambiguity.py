"""Measures whether a translation model resolves pronouns and senses from the words around them.

python benchmarks/ambiguity.py --workdir=DIR [--seed=N] [--json=FILE] [--tiny]
python benchmarks/ambiguity.py --table --json=FILE

Each part trains configs/wmt/quickstart.py:ambiguity with another seed. All sentences that it
measures are absent from training.

- Pronouns: it translates twins, which differ in the last word alone ("The animal didn't cross the
  street because it was too tired" and "... too wide"). A pair is right if the German pronoun has
  the right gender in both. For each head with which the decoder attends to the source, it counts
  the sentences in which the pronoun, as it is written, attends to its noun more than to the other
  noun, and for each head of the encoder those in which "it" does. The head is chosen on the first
  half of the twins, and its figure is of the second half. Chance is one half.
- Senses: for each occurrence of a word of two senses, whether the nearest other occurrence has the
  same sense, by layer of the encoder. Layer 0 is the embeddings, which all occurrences share.

The budget of the 5 seeds is 25 minutes of 2 cores. A row is put into --json as soon as its part
ends. Complete runs are not repeated, and a part that was stopped goes on.
"""

import argparse
import datetime
import json
import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import comparison
from harness import machine

from transformer_jax.cli import use_huge_pages

CONFIG = "configs/wmt/quickstart.py:ambiguity"
COMMAND = "python benchmarks/ambiguity.py --workdir=DIR --json"
SEEDS = range(5)
TWINS = 200  # pairs of sentences
OCCURRENCES = 60  # of each word of two senses
TINY = {
    "model.d_model": 32,
    "model.d_ff": 32,
    "model.vocab_size": 400,
    "data.corpus_size": 2000,
    "train.num_steps": 2,
    "train.eval_every": 2,
    "checkpoint.every": 2,
}


def main() -> None:
    use_huge_pages()
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--workdir", type=pathlib.Path)
    flags.add_argument("--json", type=pathlib.Path)
    flags.add_argument("--seed", type=int, action="append", help="may be repeated")
    flags.add_argument("--table", action="store_true", help="show the rows of --json")
    flags.add_argument("--tiny", action="store_true", help="two updates each, to try the script")
    arguments = flags.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.json.read_text())["rows"]))
        return
    arguments.workdir.mkdir(parents=True, exist_ok=True)
    write_senses(arguments.workdir / "senses.tsv")
    for seed in arguments.seed or SEEDS:
        row = measured(arguments, seed)
        print(json.dumps(row), flush=True)
        if arguments.json:
            comparison.add_rows(arguments.json, [row], "seed", list(SEEDS), COMMAND)


def write_senses(path: pathlib.Path) -> None:
    """Writes a file for `draw vectors --texts` and `draw neighbours --texts`."""
    lines = [
        f"{word}\t{sense}\t{text}\n"
        for word in ("bank", "play")
        for sense, text in in_context(word, OCCURRENCES)
    ]
    path.write_text("".join(lines), "utf-8")


def measured(arguments, seed: int) -> dict:
    """Returns the row of a seed, whose run is trained unless it is complete."""
    from transformer_jax import open_run

    run = arguments.workdir / f"seed-{seed}"
    keys = {"train.seed": seed, "task.bleu_lines": 0}
    comparison.train(CONFIG, run, keys | (TINY if arguments.tiny else {}))
    task, params = open_run(run, "latest", overrides={"decode.beam": 1})
    return {
        "seed": seed,
        **pronouns(task, params, 6 if arguments.tiny else TWINS),
        **senses(task, params, 6 if arguments.tiny else OCCURRENCES),
        "updates": task.config.train.num_steps,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "revision": comparison.revision(),
    }


def held_out_twins(count: int) -> list:
    """Returns `count` pairs of twins of which no sentence is in the training split."""
    from transformer_jax.corpora.grammar import ambiguity, corpus, phrases

    found, seed = {}, 0
    while len(found) < count:
        twins = ambiguity.draw_twins(phrases.Draw(seed))
        if all(corpus.split_of(twin.english) == "test" for twin in twins):
            found[twins[0].english] = twins
        seed += 1
    return list(found.values())


def in_context(word: str, count: int) -> list[tuple[str, str]]:
    """Returns (sense, text) of `count` sentences with the word, none of the training split."""
    from transformer_jax.corpora.grammar import ambiguity, corpus, phrases

    found, seed = {}, 0
    while len(found) < count:
        drawn = ambiguity.draw_in_context(phrases.Draw(seed), word)
        if corpus.split_of(drawn.english) == "test":
            found[drawn.english] = drawn.sense
        seed += 1
    return [(sense, text) for text, sense in found.items()]


def pronouns(task, params, count: int) -> dict:
    """Returns the shares of right pronouns, and of right attention of the best head."""
    import numpy as np

    twins = held_out_twins(count)
    sentences = [twin for pair in twins for twin in pair]
    sources = [twin.english for twin in sentences]
    outputs = [best.text for best, *_ in task.translate(params, sources)]
    right = np.array([_has(text, twin.pronoun) for text, twin in zip(outputs, sentences)])
    row = {
        "pronouns": float(right.mean()),
        "twins": float(right.reshape(-1, 2).all(axis=1).mean()),
    }
    for kind in ("cross", "encoder"):
        looks = np.stack([_prefers_referent(task, params, twin, kind) for twin in sentences])
        chosen, measured_on = looks[:count], looks[count:]
        layer, head = np.unravel_index(chosen.mean(axis=0).argmax(), looks.shape[1:])
        row[kind] = {
            "head": [int(layer) + 1, int(head) + 1],
            "head_share": float(measured_on[:, layer, head].mean()),
            "heads": looks.mean(axis=0).round(3).tolist(),
        }
    return row


def _has(translation: str, pronoun: str) -> bool:
    """Returns whether the subordinate clause of a translation begins with the pronoun."""
    words = translation.rpartition(",")[2].split()
    return len(words) > 1 and words[1] == pronoun


def _prefers_referent(task, params, twin, kind: str):
    """Returns whether the pronoun attends to its noun more, bool (layers, heads).

    The pronoun is the German one as it is written for `kind` "cross", and "it" for "encoder".
    """
    found = task.attention(params, twin.english, target=twin.german, kind=kind)
    keys, queries = (
        [word.strip(".,").lower() for word in words] for words in (found.keys, found.queries)
    )
    # The last one, because the article of a noun may have the same form, as in "sie".
    pronoun = twin.pronoun if kind == "cross" else "it"
    query = len(queries) - 1 - queries[::-1].index(pronoun)
    weights = found.weights[:, :, query]
    return weights[..., keys.index(twin.referent)] > weights[..., keys.index(twin.other)]


def senses(task, params, count: int) -> dict:
    """Returns the share of nearest neighbors of the same sense by layer, in all and by word."""
    from transformer_jax.corpora.grammar import ambiguity
    from transformer_jax.inference import neighbours

    found = {
        word: neighbours.word_neighbours(task, params, word, in_context(word, count))
        for word in ambiguity.WORDS
    }
    shares, chance = neighbours.accuracies(list(found.values()))
    return {
        "senses": [float(share) for share in shares],
        "senses_chance": chance,
        "words": {word: float(each.same_sense[-1].mean()) for word, each in found.items()},
    }


def table(rows: list[dict]) -> str:
    """Returns the rows as Markdown."""
    last = len(rows[0]["senses"]) - 1
    header = [
        "seed",
        "right pronouns",
        "both of a pair",
        "decoder's best head (layer, head)",
        "its pronouns that attend to the right noun",
        "encoder's best head",
        'its "it" that attend to the right noun',
        *(f"same sense, layer {layer}" for layer in range(last + 1)),
        "bank, last layer",
    ]
    lines = [
        [
            str(row["seed"]),
            f"{row['pronouns']:.1%}",
            f"{row['twins']:.1%}",
            *(
                cell
                for kind in ("cross", "encoder")
                for cell in (
                    "{}, {}".format(*row[kind]["head"]),
                    f"{row[kind]['head_share']:.1%}",
                )
            ),
            *(f"{share:.1%}" for share in row["senses"]),
            f"{row['words']['bank']:.1%}",
        ]
        for row in rows
    ]
    return comparison.markdown(header, lines)


if __name__ == "__main__":
    main()
