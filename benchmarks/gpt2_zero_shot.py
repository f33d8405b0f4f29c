"""Evaluates a converted GPT-2 on the sets of its zero-shot table (Radford et al. 2019, table 3).

python benchmarks/gpt2_zero_shot.py --workdir=RUN --data=DIR --json=FILE [--set=NAME]

RUN is `convert --from_hf=FOLDER --workdir=RUN`. DIR holds the files of `FILES`, or some of them;
the others are left out. A row is put into --json as soon as it ends, and rows that --json has are
not computed again. Its score is the one that the paper reports: of LAMBADA, that of the last token.
"""

import argparse
import datetime
import json
import pathlib

import comparison
from harness import machine

COMMAND = "python benchmarks/gpt2_zero_shot.py --workdir=RUN --data=DIR --json"
# The rows: the set, its file, and which of its scores.
FILES = {
    "lambada": ("lambada", "lambada_test.jsonl", "last_token_perplexity"),
    "lambada accuracy": ("lambada", "lambada_test.jsonl", "last_token_accuracy"),
    "cbt common nouns": ("cbt", "cbtest_CN_test_2500ex.txt", "accuracy"),
    "cbt named entities": ("cbt", "cbtest_NE_test_2500ex.txt", "accuracy"),
    "wikitext2": ("wikitext2", "wikitext-2/wiki.test.tokens", "perplexity"),
    "ptb": ("ptb", "ptb.test.txt", "perplexity"),
    "enwik8": ("enwik8", "enwik8.test", "bits_per_byte"),
    "text8": ("text8", "text8.test", "bits_per_character"),
    "wikitext103": ("wikitext103", "wikitext-103/wiki.test.tokens", "perplexity"),
    "1bw": ("1bw", "1bw.test.txt", "perplexity"),
}


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("workdir", "data", "json"):
        flags.add_argument(f"--{name}", type=pathlib.Path, required=True)
    flags.add_argument("--set", choices=FILES, action="append", help="only it; may be repeated")
    arguments = flags.parse_args()
    done = {}
    if arguments.json.exists():
        done = {row["set"] for row in json.loads(arguments.json.read_text())["rows"]}
    names = [name for name in arguments.set or FILES if name not in done]
    present = [name for name in names if (arguments.data / FILES[name][1]).exists()]
    for name in present:
        row = measured(arguments, name)
        print(json.dumps(row), flush=True)
        comparison.add_rows(arguments.json, [row], "set", list(FILES), COMMAND)


def measured(arguments, name: str) -> dict:
    """Returns the row of a set. Accuracies are in percent."""
    import transformer_jax
    from transformer_jax.inference import zero_shot

    data_set, file, score = FILES[name]
    task, params = transformer_jax.open_run(arguments.workdir)
    scores = zero_shot.evaluate(task, params, data_set, str(arguments.data / file))
    return {
        "set": name,
        "score": scores[score] * (100 if "accuracy" in score else 1),
        "scores": scores,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "revision": comparison.revision(),
    }


if __name__ == "__main__":
    main()
