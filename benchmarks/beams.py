"""The cases `beam` and `opus_mt` of decode.py: translation by beam search."""

import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Callable

import numpy as np
from harness import apart, gpu, sides, tokens_beside
from steps import random_params

from transformer_jax import convert
from transformer_jax.config import experiment
from transformer_jax.data import tokenizers
from transformer_jax.data.tokenizers import unigram
from transformer_jax.runs.open import open_run
from transformer_jax.tasks.translation import Translation


@dataclasses.dataclass(frozen=True)
class Beams:
    """A translation model, the lengths of its sentences, and the sentences decoded together."""

    layers: int
    width: int
    vocab_size: int
    lengths: np.ndarray  # (sentences, 2), of source and target
    size: int
    activation: str = "relu"

    def sentences(self) -> list[np.ndarray]:
        random = np.random.default_rng(0)
        return [random.integers(1, self.vocab_size - 1, source) for source, _ in self.lengths]

    def batches(self, sort_by: int | None) -> list[np.ndarray]:
        """Returns the indices of each batch.

        Sentences are sorted by the lengths of sources (0) or targets (1), or not sorted (None).
        """
        order = np.arange(len(self.lengths))
        if sort_by is not None:
            order = np.argsort(-self.lengths[:, sort_by], kind="stable")
        return [order[start : start + self.size] for start in range(0, len(order), self.size)]


def beam(tiny: bool, data: str | None):
    """The base Transformer with beam 4, 32 and 64 sentences at a time.

    The lengths are those of Multi30k's test set, source and reference, in word pieces. Ours sorts
    the sentences by length, as `translate` does. Hugging Face's are measured both sorted and in the
    order of the file. CTranslate2 has one length for a batch and gets the batches that waste least.
    Padding is not counted.
    """
    layers, width, vocab_size = (1, 64, 96) if tiny else (6, 512, 8000)
    lengths = _lengths(data, vocab_size, 16 if tiny else 1000)
    sizes = (4, 8) if tiny else (32, 64)
    cases = [Beams(layers, width, vocab_size, lengths, size) for size in sizes]
    source = "Multi30k's lengths" if data else "drawn lengths"
    yield from _rows(f"{layers} layers of {width}, {source}", cases, our_beams, 1 if tiny else 3)


def opus_mt(tiny: bool, data: str | None):
    """A converted checkpoint of OPUS-MT's size, with beam 4 and 32 sentences at a time.

    Otherwise it is the case `beam`. Ours also keeps padding out of the outputs.
    """
    layers, width, vocab_size = (1, 64, 96) if tiny else (6, 512, 58_101)
    lengths = _lengths(None, vocab_size, 16 if tiny else 200)
    case = Beams(layers, width, vocab_size, lengths, 4 if tiny else 32, "swish")
    title = f"OPUS-MT, {layers} layers of {width}, vocabulary {vocab_size:,}"
    yield from _rows(title, [case], converted_beams, 1 if tiny else 3)


def _rows(title: str, cases: list[Beams], ours: Callable, repeats: int):
    """Yields the rows of all cases against all peers. `ours` makes the call of a case."""
    # {name: (library, method of engines.Beams, sort_by)}
    peers = {
        "HF generate, file order": ("torch", "generate", None),
        "HF generate, sorted": ("torch", "generate", 0),
        "CTranslate2, sorted": ("ctranslate2", "ctranslate2", 1),
    }
    if gpu():
        del peers["CTranslate2, sorted"]
    for case in cases:
        makers = {"ours": ("jax", functools.partial(ours, case))}
        for name, (library, engine, sort_by) in peers.items():
            makers[name] = (library, functools.partial(peer_beams, case, engine, sort_by))
        spent = sides(makers, repeats)
        name = f"beam 4, {case.size} at a time, {title}"
        yield from tokens_beside(name, spent, int(case.lengths[:, 1].sum()))


def our_beams(case: Beams) -> Callable[[], None]:
    config = experiment(
        model=dict(
            name="encoder_decoder",
            vocab_size=case.vocab_size,
            d_model=case.width,
            d_ff=4 * case.width,
            num_heads=case.width // 64,
            num_encoder_layers=case.layers,
            num_decoder_layers=case.layers,
            max_length=512,
        ),
        task=dict(name="translation"),
        decode=dict(beam=4, batch=case.size),
    )
    task = Translation(config, None)
    shared = tokenizers.Tokenizer(b"")
    shared.pad_id, shared.vocab_size = 0, case.vocab_size
    task.tokenizer = tokenizers.Pair(shared, shared)
    return _written(task, random_params(task), case)


def converted_beams(case: Beams) -> Callable[[], None]:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, run = pathlib.Path(folder) / "checkpoint", pathlib.Path(folder) / "run"
        apart(_save_checkpoint, case, checkpoint)
        convert.from_hf(checkpoint, run)
        task, params = open_run(run, overrides=[("decode.batch", case.size)])
    return _written(task, params, case)


def _save_checkpoint(case: Beams, folder: pathlib.Path) -> None:
    """Writes a Marian with random weights, and tokenizers that have few of its tokens."""
    model = _marian(case)
    model.generation_config.update(num_beams=4, early_stopping=True, max_length=512)
    model.save_pretrained(folder)
    pieces = tokenizers.train(["the cat sat on the mat"], "unigram", 30)
    tokenizer, _ = unigram.marian_of_sentence_piece(pieces, case.vocab_size)
    for name, content in unigram.hf_files(tokenizer, tokenizer).items():
        (folder / name).write_bytes(content)


def _written(task: Translation, params, case: Beams) -> Callable[[], None]:
    """Returns a call that writes all sentences. Without an end, each is as long as its limit."""
    task.tokenizer.target.eos_id = -1
    params = task.model.for_decoding(params)
    sentences = case.sentences()
    order = np.concatenate(case.batches(sort_by=0))
    limits = case.lengths[order, 1]
    return lambda: list(task.stream(params, 1)(params, [sentences[i] for i in order], limits))


def peer_beams(case: Beams, engine: str, sort_by: int | None) -> Callable[[], None]:
    import engines

    model = _marian(case)
    write = getattr(engines.Beams(model, 4), engine)
    sentences = case.sentences()
    return lambda: [
        write([sentences[i] for i in batch], case.lengths[batch, 1])
        for batch in case.batches(sort_by)
    ]


def _marian(case: Beams):
    import peers

    return peers.marian(
        vocab_size=case.vocab_size,
        d_model=case.width,
        d_ff=4 * case.width,
        num_layers=case.layers,
        num_heads=case.width // 64,
        length=512,
        activation=case.activation,
    )


def _lengths(data: str | None, vocab_size: int, count: int) -> np.ndarray:
    """Returns the lengths (count, 2) of source and reference in tokens, ends included.

    They are those of the first sentences of Multi30k's test set, which has 1,000. Without `data`,
    they are drawn.
    """
    if data is None:
        return draw_lengths(count)

    def lines(name: str) -> list[str]:
        return (pathlib.Path(data) / name).read_text("utf-8").splitlines()

    lengths = []
    for language in ("en", "de"):
        pieces = tokenizers.train(lines(f"train.{language}"), "bpe", max(vocab_size, 1000))
        sentences = lines(f"test_2016_flickr.{language}")[:count]
        lengths.append([len(ids) + 1 for ids in pieces.encode(sentences)])
    return np.array(lengths).T


def draw_lengths(count: int) -> np.ndarray:
    """Returns lengths (count, 2) from a gamma distribution with mean 14."""
    return 3 + np.random.default_rng(0).gamma(5, 2.2, (count, 2)).astype(np.int64)
