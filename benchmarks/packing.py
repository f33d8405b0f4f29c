"""Measures training on translation pairs of all lengths: ours packs them, the peer pads them.

python benchmarks/packing.py --data=DIR [--json=FILE] [--case=transformer_tiny ...] [--tiny]

DIR holds train.en and train.de. Both sides train on the same pairs, in equally many updates, by
AdamW. The rate counts the target tokens that are not padding. The peer is Hugging Face's Marian of
the same size on torch (benchmarks/peers.py says how to install it). Its batches hold the pairs in
the order of the file, or sorted by length, as with its trainer's group_by_length.
`transformer_base` and `transformer_big` need a GPU, where both sides compute in bfloat16.
"""

import dataclasses
import functools
import os
import pathlib
import tempfile

# The peers use the GPU's memory, too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import numpy as np
from harness import main, sides, tokens_beside
from steps import quiet, stepping

from transformer_jax.tasks.translation import Translation

_UPDATES = 8
# The peer's lengths are multiples of this, so that several batches share a shape.
_LENGTH_MULTIPLE = 8


@dataclasses.dataclass(frozen=True)
class Sizes:
    """An encoder-decoder and its packed batches."""

    layers: int
    width: int
    d_ff: int
    heads: int
    vocab_size: int
    rows: int
    length: int

    def config(self):
        model = dict(
            name="encoder_decoder",
            vocab_size=self.vocab_size,
            d_model=self.width,
            d_ff=self.d_ff,
            num_heads=self.heads,
            num_encoder_layers=self.layers,
            num_decoder_layers=self.layers,
            max_length=self.length + 64,
        )
        lengths = dict(source_length=self.length, target_length=self.length)
        return quiet(self.rows, model, dict(name="translation", label_smoothing=0.0, **lengths))

    def peer(self):
        import peers

        return peers.marian(
            vocab_size=self.vocab_size,
            d_model=self.width,
            d_ff=self.d_ff,
            num_layers=self.layers,
            num_heads=self.heads,
            length=self.length + 64,
        )


def packing(tiny: bool, data: str | None, name: str, sizes: Sizes):
    import peers

    if data is None:
        raise SystemExit("--data=DIR is missing: a folder with train.en and train.de")
    if tiny:
        sizes = dataclasses.replace(sizes, rows=4, length=64, layers=1)
    rows, length = sizes.rows, sizes.length
    config = sizes.config()
    batches = packed_batches(config, pathlib.Path(data), length)
    pairs = [pair for batch in batches for pair in unpacked(batch)]
    tokens = sum(len(target) - 1 for _, target in pairs)
    by_length = sorted(pairs, key=lambda pair: len(pair[1]))
    makers = {"ours": ("jax", functools.partial(our_step, config, batches))}
    for order, ordered in (("as they come", pairs), ("sorted by length", by_length)):
        for way, options in peers.PADDED.items():
            if not (tiny and options["compiled"]):
                makers[f"{way}, {order}"] = (
                    "torch",
                    functools.partial(peer_step, ordered, sizes, way),
                )
    spent = sides(makers, 2 if tiny else 5)
    filled = tokens / (_UPDATES * rows * length)
    case = f"{name}, {rows} rows of {length}+{length}, {len(pairs) // _UPDATES} pairs"
    yield from tokens_beside(case, spent, tokens, filled=filled)


def packed_batches(config, data: pathlib.Path, length: int) -> list[dict[str, np.ndarray]]:
    """Returns the first packed batches of the pairs."""
    with tempfile.TemporaryDirectory() as cache:
        config.data.update(
            train_source=str(data / "train.en"), train_target=str(data / "train.de"), cache=cache
        )
        rows = Translation(config, None, length, length, 0.0).rows().train
        return [
            {
                name: np.array(array)
                for name, array in rows.batch(step, range(config.train.batch)).items()
            }
            for step in range(_UPDATES)
        ]


def unpacked(batch: dict[str, np.ndarray]) -> list[tuple[np.ndarray, ...]]:
    """Returns (source, target with its beginning and end) of each pair."""
    pairs = []
    for row in range(len(batch["source"])):
        for segment in range(1, batch["target_segment_ids"][row].max() + 1):
            in_source = batch["source_segment_ids"][row] == segment
            in_target = batch["target_segment_ids"][row] == segment
            end = batch["labels"][row, in_target][-1]
            target = np.append(batch["target"][row, in_target], end)
            pairs.append((batch["source"][row, in_source], target))
    return pairs


def our_step(config, batches: list[dict]):
    length = config.task.target_length
    return stepping(Translation(config, None, length, length, 0.0), batches)


def peer_step(pairs: list[tuple], sizes: Sizes, way: str):
    import peers

    count = -(-len(pairs) // _UPDATES)  # pairs of a batch
    batches = [padded(pairs[start : start + count]) for start in range(0, len(pairs), count)]
    return peers.train_step(sizes.peer(), batches, **peers.PADDED[way])


def padded(pairs: list[tuple]) -> dict[str, np.ndarray]:
    """Returns the peer's batch, padded to the longest source and the longest target."""
    source_length = _rounded_up(max(len(source) for source, _ in pairs))
    target_length = _rounded_up(max(len(target) - 1 for _, target in pairs))
    batch = {
        "input_ids": np.zeros((len(pairs), source_length)),
        "decoder_input_ids": np.zeros((len(pairs), target_length)),
        "attention_mask": np.zeros((len(pairs), source_length)),
        "labels": np.full((len(pairs), target_length), -100.0),
    }
    for row, (source, target) in enumerate(pairs):
        batch["input_ids"][row, : len(source)] = source
        batch["attention_mask"][row, : len(source)] = 1
        batch["decoder_input_ids"][row, : len(target) - 1] = target[:-1]
        batch["labels"][row, : len(target) - 1] = target[1:]
    return batch


def _rounded_up(length: int) -> int:
    return -(-length // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE


TINY = Sizes(layers=4, width=128, d_ff=256, heads=4, vocab_size=4000, rows=16, length=128)
BASE = Sizes(layers=6, width=512, d_ff=2048, heads=8, vocab_size=37_000, rows=64, length=256)
BIG = Sizes(layers=6, width=1024, d_ff=4096, heads=16, vocab_size=37_000, rows=64, length=256)
CPU = {"transformer_tiny": functools.partial(packing, name="Transformer-tiny", sizes=TINY)}
GPU = {
    "transformer_base": functools.partial(packing, name="Transformer base", sizes=BASE),
    "transformer_big": functools.partial(packing, name="Transformer big", sizes=BIG),
}

if __name__ == "__main__":
    main(
        __doc__,
        CPU | GPU,
        ("jax", "flax"),
        GPU if jax.default_backend() == "gpu" else CPU,
        given=("data", "folder with train.en and train.de"),
        releases=True,
    )
