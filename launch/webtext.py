"""Makes a WebText of your own: pages that people have voted for, without copies and poor text.

python launch/webtext.py --pages='pages/*.jsonl' --output=webtext.jsonl [--karma=3] \\
    [--reference='wikipedia/*.txt'] [--seed=0]

A line of --pages is a JSON object with "text", the text of a page, and optionally "url" and
"karma", the votes of the post that linked to it. These are the steps, each of which prints how many
pages it leaves:

1. karma: at least --karma votes (Radford et al. 2019, section 2.1: 3);
2. sources: no Wikipedia, because test sets are made from it (the same section);
3. addresses: one page of each;
4. length: at least 128 words, as in OpenWebText (Gokaslan & Cohen 2019);
5. copies: of pages whose sets of five-word sequences have a Jaccard similarity of 0.5 or more, the
   first one (OpenWebText; MinHash, Broder 1997, finds most of them);
6. quality, with --reference: a logistic regression on hashed words learns to tell the reference
   texts from the pages. A page with the probability p of being reference text stays if a draw from
   a Pareto distribution with the exponent 9 is above 1 - p (Brown et al. 2020, appendix A).

The output is JSON lines with "text", which `config.data.train_files` reads. WebText itself was made
from 45 million links, and steps 4 and 5 of it were not published. Step 6 needs scikit-learn.
"""

import argparse
import glob
import json
import pathlib
import re
import sys
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator

import numpy as np

MIN_WORDS = 128
SHINGLE = 5  # words
# Two pages become candidates if all rows of one band agree. With similarity s the probability is
# 1 - (1 - s^ROWS)^BANDS: 0.47 at s = 0.5, and 0.97 at s = 0.7.
BANDS, ROWS = 20, 5
SIMILARITY = 0.5
PARETO = 9.0
_PRIME = (1 << 31) - 1
_WORDS = re.compile(r"\w+")


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--pages", required=True, help="pattern of JSON lines")
    flags.add_argument("--output", type=pathlib.Path, required=True)
    flags.add_argument("--karma", type=int, default=3)
    flags.add_argument("--reference", help="pattern of text files, a document each")
    flags.add_argument("--seed", type=int, default=0, help="of the draws of step 6")
    options = flags.parse_args()
    pages = list(read(options.pages))
    steps = {
        "karma": lambda pages: [page for page in pages if page.get("karma", 0) >= options.karma],
        "sources": lambda pages: [page for page in pages if not is_wikipedia(page)],
        "addresses": one_of_each_address,
        "length": lambda pages: [page for page in pages if len(words(page)) >= MIN_WORDS],
        "copies": without_copies,
    }
    if options.reference:
        reference = [pathlib.Path(name).read_text("utf-8") for name in files(options.reference)]
        steps["quality"] = lambda pages: good(pages, reference, options.seed)
    if not any("karma" in page for page in pages):
        print("no page has karma: step 1 is left out", file=sys.stderr)
        del steps["karma"]
    print(f"{len(pages):,} pages", file=sys.stderr)
    for name, step in steps.items():
        pages = step(pages)
        print(f"{name}: {len(pages):,} pages are left", file=sys.stderr)
    lines = [json.dumps({"text": page["text"]}, ensure_ascii=False) + "\n" for page in pages]
    options.output.write_text("".join(lines), "utf-8")


def files(pattern: str) -> list[str]:
    """Returns the files of a pattern, or ends the program with a message if there are none."""
    names = sorted(glob.glob(pattern, recursive=True))
    if not names:
        fail(f"{pattern}: no such file")
    return names


def read(pattern: str) -> Iterator[dict]:
    """Yields the pages of JSON lines."""
    for name in files(pattern):
        with open(name, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    page = json.loads(line)
                except json.JSONDecodeError as error:
                    fail(f"{name}:{number}: not JSON ({error.msg})")
                if not isinstance(page, dict) or not isinstance(page.get("text"), str):
                    fail(f"{name}:{number}: not a JSON object with a text")
                yield page


def fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def words(page: dict) -> list[str]:
    return _WORDS.findall(page["text"].lower())


def is_wikipedia(page: dict) -> bool:
    host = urllib.parse.urlsplit(page.get("url", "")).hostname or ""
    return host == "wikipedia.org" or host.endswith(".wikipedia.org")


def one_of_each_address(pages: Iterable[dict]) -> list[dict]:
    """Returns the first page of each address. Case, a final slash and a fragment do not count."""
    seen, kept = set(), []
    for page in pages:
        parts = urllib.parse.urlsplit(page.get("url", ""))
        address = (parts.netloc.lower().removeprefix("www."), parts.path.rstrip("/"), parts.query)
        if not any(address) or address not in seen:
            kept.append(page)
        seen.add(address)
    return kept


def shingles(page: dict) -> set[int]:
    """Returns the hashes below 2^31 of all sequences of five words."""
    found = words(page)
    texts = (" ".join(found[i : i + SHINGLE]) for i in range(max(len(found) - SHINGLE + 1, 1)))
    return {zlib.crc32(text.encode()) % _PRIME for text in texts}


def signature(hashes: set[int]) -> np.ndarray:
    """Returns the least value of each of BANDS * ROWS random functions over the set (MinHash)."""
    slopes, offsets = np.random.default_rng(0).integers(1, _PRIME, (2, BANDS * ROWS), np.uint64)
    # Below 2^62, since both factors are below 2^31.
    products = np.array([*hashes], np.uint64)[:, None] * slopes + offsets
    return (products % np.uint64(_PRIME)).min(axis=0)


def without_copies(pages: Iterable[dict]) -> list[dict]:
    """Returns the pages without those that resemble an earlier one."""
    buckets: dict[tuple, list[set[int]]] = {}
    kept = []
    for page in pages:
        hashes = shingles(page)
        bands = signature(hashes).reshape(BANDS, ROWS)
        keys = [(number, *band.tolist()) for number, band in enumerate(bands)]
        others = (other for key in keys for other in buckets.get(key, []))
        if any(similarity(hashes, other) >= SIMILARITY for other in others):
            continue
        kept.append(page)
        for key in keys:
            buckets.setdefault(key, []).append(hashes)
    return kept


def similarity(one: set[int], other: set[int]) -> float:
    """Returns the Jaccard similarity of two sets."""
    return len(one & other) / len(one | other)


def good(pages: list[dict], reference: list[str], seed: int) -> list[dict]:
    """Returns the pages that resemble the reference texts, and a few that do not."""
    if not pages:
        return []
    scores = quality([page["text"] for page in pages], reference)
    draws = np.random.default_rng(seed).pareto(PARETO, len(pages))
    return [page for page, score, draw in zip(pages, scores, draws) if draw > 1 - score]


def quality(texts: list[str], reference: list[str]) -> np.ndarray:
    """Returns the probability of each text that it is one of the reference texts."""
    try:
        from sklearn.feature_extraction.text import HashingVectorizer
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        fail("--reference needs scikit-learn: pip install 'transformer_jax[vision]'")
    features = HashingVectorizer(n_features=2**18, alternate_sign=False).transform(
        [*reference, *texts]
    )
    labels = [1] * len(reference) + [0] * len(texts)
    model = LogisticRegression(max_iter=1000, class_weight="balanced").fit(features, labels)
    return model.predict_proba(features[len(reference) :])[:, 1]


if __name__ == "__main__":
    main()
