"""Files for benchmarks/preferences.py: short texts with labels, conversations and prompts."""

import json
import pathlib
from collections.abc import Iterable, Iterator

PROMPT_WORDS = 8
# Words of a completion, which ends with the first sentence that ends between these.
FEWEST, MOST = 14, 24
PIECES = 4  # of a review, for a classifier
# Reviews of the text, by number: those of conversations, of pairs, and of prompts alone.
CONVERSATIONS, PAIRS, PROMPTS = slice(20_000), slice(20_000, 28_000), slice(28_000, 44_000)


def write_halves(data: pathlib.Path, folder: pathlib.Path, tiny: bool) -> None:
    """Writes pieces of IMDB's labelled reviews into `folder`, LABEL<TAB>TEXT.

    labeller.tsv and judge.tsv hold the pieces of different reviews: of every second review of the
    training set. labeller_valid.tsv and judge_valid.tsv hold those of two halves of every tenth
    review of the test set.
    """
    for part, name in (("train", ""), ("test", "_valid")):
        lines = (data / f"imdb/{part}.tsv").read_text("utf-8").splitlines()
        lines = lines[:: 10 if name else 1]
        lines = lines[:: len(lines) // 40] if tiny else lines
        for start, half in enumerate(("labeller", "judge")):
            rows = (
                f"{label}\t{piece}\n"
                for label, _, text in (line.partition("\t") for line in lines[start::2])
                for piece in pieces(text)
            )
            write(folder / f"{half}{name}.tsv", rows)


def pieces(text: str) -> Iterator[str]:
    """Yields pieces of a text, of as many words as prompt and completion, spread over it."""
    words, size = text.split(), PROMPT_WORDS + MOST
    last = max(len(words) - size, 0)
    for start in sorted({round(last * number / (PIECES - 1)) for number in range(PIECES)}):
        yield " ".join(words[start : start + size])


def write_conversations(folder: pathlib.Path) -> None:
    """Writes conversations and prompts as JSON lines into `folder`, which has the reviews.

    The prompt is the first words of a review, and the completion the words that follow.
    """
    train, valid = (list(conversations(folder / f"{part}.txt")) for part in ("train", "valid"))
    share = len(train) / PROMPTS.stop
    scale = min(share, 1)  # of a small text, for a trial
    parts = {
        name: train[round(scale * (part.start or 0)) : round(scale * part.stop)]
        for name, part in (("chats", CONVERSATIONS), ("asked", PAIRS), ("prompts", PROMPTS))
    }
    for name, part in (parts | {"valid": valid}).items():
        write(folder / f"{name}.jsonl", (json.dumps(each) + "\n" for each in part))


def conversations(path: pathlib.Path) -> Iterator[dict]:
    """Yields a prompt and a completion for each review that is long enough."""
    for review in path.read_text("utf-8").split("\n\n"):
        words = review.split()
        if len(words) >= PROMPT_WORDS + MOST:
            completion = words[PROMPT_WORDS : PROMPT_WORDS + MOST]
            ends = [count for count, word in enumerate(completion, 1) if word[-1] in ".!?"]
            length = next((count for count in ends if count >= FEWEST), MOST)
            yield {
                "prompt": " ".join(words[:PROMPT_WORDS]),
                "completion": " " + " ".join(completion[:length]),
            }


def read(path: pathlib.Path) -> list[dict]:
    """Returns the JSON objects of the lines of a file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def write(path: pathlib.Path, lines: Iterable[str]) -> None:
    """Writes a file, in whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text("".join(lines), "utf-8")
    partial.replace(path)
