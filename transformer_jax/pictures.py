"""Pictures of what a model does, as PNG."""
import pathlib

import numpy as np


def attention(path: pathlib.Path, weights: np.ndarray, queries: list[str], keys: list[str], title: str) -> None:
    """Attention weights (queries, keys) as a heat map with the words on both axes."""
    from matplotlib.figure import Figure  # slow to import

    figure = Figure(figsize=(2 + 0.45 * len(keys), 1.5 + 0.4 * len(queries)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(weights, cmap="viridis", vmin=0, aspect="auto")
    axes.set_xticks(range(len(keys)), keys, rotation=60, ha="left")
    axes.set_yticks(range(len(queries)), queries)
    axes.xaxis.tick_top()
    axes.set_title(title)
    figure.savefig(path, dpi=120, format="png")


def by_words(weights: np.ndarray, queries: list[str], keys: list[str]) -> tuple[np.ndarray, list[str], list[str]]:
    """Weights between SentencePiece pieces (Q, K) as weights between words: summed over a key word's pieces, averaged over a query word's."""
    (query_words, query_of), (key_words, key_of) = _words(queries), _words(keys)
    summed = np.zeros((len(queries), len(key_words)))
    np.add.at(summed.T, key_of, weights.T)
    found = np.zeros((len(query_words), len(key_words)))
    np.add.at(found, query_of, summed)
    return found / np.bincount(query_of)[:, None], query_words, key_words


def _words(pieces: list[str]) -> tuple[list[str], np.ndarray]:
    """The words pieces form, and the word of each piece; the end token stands alone."""
    words, of = [], []
    for piece in pieces:
        if not words or piece.startswith("▁") or piece == "</s>":
            words.append("")
        words[-1] += piece.replace("▁", "")
        of.append(len(words) - 1)
    return words, np.array(of)
