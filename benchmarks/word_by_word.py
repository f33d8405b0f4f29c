"""Translates the built-in grammar word by word: the baseline that every translator must beat.

python benchmarks/word_by_word.py [--pairs=20000] [--sentences=1000] [--json=FILE]

IBM Model 1 learns from sentence pairs alone which word translates which (Brown et al. 1993), by
expectation maximization. Each word is then replaced by its likeliest translation, in the order of
the source. The scores are sacreBLEU of held-out sentences, in both directions. It takes about a
minute of a core.
"""

import argparse
import collections
import datetime
import json
import pathlib
import re
from collections.abc import Sequence

import comparison
from harness import machine

ITERATIONS = 5
NULL = ""  # the source word of the target words that translate nothing
EXAMPLES = {
    "en-de": "Can you help me to translate this sentence?",
    "de-en": "Kannst du mir helfen, diesen Satz zu übersetzen?",
}
_WORDS = re.compile(r"\w+|[^\w\s]")

Table = dict[str, dict[str, float]]  # P(target word | source word)


def main() -> None:
    from transformer_jax.corpora import grammar
    from transformer_jax.scores import texts

    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--pairs", type=int, default=20_000, help="pairs to learn from")
    flags.add_argument("--sentences", type=int, default=1000, help="held-out sentences")
    flags.add_argument("--json", type=pathlib.Path)
    options = flags.parse_args()
    train = list(grammar.pairs(0, "train", options.pairs))
    test = list(grammar.pairs(0, "test", options.sentences))
    rows = []
    for name, turn in (("en-de", 1), ("de-en", -1)):
        dictionary = likeliest(learned([pair[::turn] for pair in train]))
        sources, references = zip(*(pair[::turn] for pair in test))
        outputs = [translated(source, dictionary) for source in sources]
        scores = texts.scores(outputs, list(references), name[-2:])
        example = [translated(EXAMPLES[name], dictionary), EXAMPLES[name]]
        rows.append({"direction": name, **scores, "example": example})
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    if options.json:
        origin = {"date": datetime.date.today().isoformat(), "machine": machine()}
        counts = {"pairs": options.pairs, "sentences": options.sentences}
        record = origin | counts | {"revision": comparison.revision(), "rows": rows}
        options.json.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8")


def words(text: str) -> list[str]:
    """Returns the words and the punctuation marks of a text."""
    return _WORDS.findall(text)


def learned(pairs: Sequence[tuple[str, str]], iterations: int = ITERATIONS) -> Table:
    """Returns P(target word | source word) after `iterations` of expectation maximization."""
    # Sources in lower case, because each begins with a capital letter. Targets keep their nouns'.
    divided = [([NULL, *words(source.lower())], words(target)) for source, target in pairs]
    table = collections.defaultdict(lambda: collections.defaultdict(lambda: 1.0))
    for _ in range(iterations):
        counts = collections.defaultdict(lambda: collections.defaultdict(float))
        for source, target in divided:
            for word in target:
                # All source words explain a target word, in proportion to their probabilities.
                total = sum(table[each][word] for each in source)
                for each in source:
                    counts[each][word] += table[each][word] / total
        totals = {each: sum(row.values()) for each, row in counts.items()}
        table = {
            each: {word: count / totals[each] for word, count in row.items()}
            for each, row in counts.items()
        }
    return table


def likeliest(table: Table) -> dict[str, str]:
    """Returns the likeliest translation of each source word."""
    return {each: max(row, key=row.get) for each, row in table.items() if each != NULL}


def translated(source: str, dictionary: dict[str, str]) -> str:
    """Returns the translation of each word; an unknown word stays."""
    text = " ".join(dictionary.get(word, word) for word in words(source.lower()))
    text = re.sub(r" ([.,!?])", r"\1", text)
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    main()
