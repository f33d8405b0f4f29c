"""Translation trained on sentences as long as they come: ours packs several pairs into a row, the
peer pads each to the longest of its batch.

python benchmarks/packing.py --data=DIR [--json=FILE] [--case=transformer_tiny] [--case=transformer_big ...] [--tiny]

DIR: a folder with train.en and train.de. Both sides train on the same pairs in as many updates, by
AdamW, and count the target tokens that are not padding. The peer is Hugging Face's Marian of the
same size on torch (benchmarks/peers.py says how to get it): its batches as the pairs come, and
sorted by length, as its trainer does where it is asked to (group_by_length); `transformer_base` and
`transformer_big` are for a GPU, where both compute in bfloat16.
"""

import functools
import os
import pathlib
import tempfile

# a GPU's memory is for the peers, too
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import numpy as np
from harness import main, sides
from train_step import quiet, stepping

from transformer_jax.tasks.translation import Translation

_UPDATES = 8
_MULTIPLE = 8  # of which the peer's lengths are, so that not each batch has a shape of its own


def packing(
    name: str,
    layers: int,
    width: int,
    d_ff: int,
    heads: int,
    vocab_size: int,
    rows: int,
    length: int,
    tiny: bool,
    data: str | None,
):
    import peers

    if data is None:
        raise SystemExit("--data=DIR is needed: a folder with train.en and train.de")
    rows, length, layers = (4, 64, 1) if tiny else (rows, length, layers)
    shape = dict(
        name="encoder_decoder",
        vocab_size=vocab_size,
        d_model=width,
        d_ff=d_ff,
        num_heads=heads,
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        max_length=length + 64,
    )
    config = quiet(
        rows,
        shape,
        dict(name="translation", source_length=length, target_length=length, label_smoothing=0.0),
    )
    batches = batches_of(config, pathlib.Path(data), length)
    pairs = [pair for batch in batches for pair in unpacked(batch)]
    tokens = sum(len(target) - 1 for _, target in pairs)
    by_length = sorted(pairs, key=lambda pair: len(pair[1]))
    makers = {
        f"{way}, {order}": (
            "torch",
            functools.partial(
                theirs, given, (vocab_size, width, d_ff, layers, heads, length + 64, 0.0), way
            ),
        )
        for order, given in (("as they come", pairs), ("sorted by length", by_length))
        for way, options in peers.PADDED.items()
        if not (tiny and options["compiled"])
    }
    spent = sides(
        {"ours": ("jax", functools.partial(ours, config, batches))} | makers, 2 if tiny else 5
    )
    filled = tokens / (_UPDATES * rows * length)
    for way in [*spent][1:]:
        yield {
            "case": f"{name}, {rows} rows of {length}+{length}, {len(pairs) // _UPDATES} pairs",
            "ours": tokens / spent["ours"],
            "unit": "tokens/s",
            "peer": tokens / spent[way],
            "peer_name": way,
            "ratio": spent[way] / spent["ours"],
            "filled": filled,
        }


def batches_of(config, data: pathlib.Path, length: int) -> list[dict[str, np.ndarray]]:
    """The first packed batches of the pairs."""
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
    """(source, target with its beginning and end) of each pair."""
    found = []
    for row in range(len(batch["source"])):
        for segment in range(1, batch["target_segment_ids"][row].max() + 1):
            source, target = (
                batch[f"{side}_segment_ids"][row] == segment for side in ("source", "target")
            )
            found.append(
                (
                    batch["source"][row, source],
                    np.append(batch["target"][row, target], batch["labels"][row, target][-1]),
                )
            )
    return found


def ours(config, batches: list[dict]):
    length = config.task.target_length
    return stepping(Translation(config, None, length, length, 0.0), batches)


def theirs(pairs: list[tuple], shape: tuple, way: str):
    import peers

    each = -(-len(pairs) // _UPDATES)
    return peers.train_step(
        peers.marian(*shape),
        [padded(pairs[start : start + each]) for start in range(0, len(pairs), each)],
        **peers.PADDED[way],
    )


def padded(pairs: list[tuple]) -> dict[str, np.ndarray]:
    longest = lambda side, less: (
        -(-max(len(pair[side]) - less for pair in pairs) // _MULTIPLE) * _MULTIPLE
    )
    batch = {
        "input_ids": np.zeros((len(pairs), longest(0, 0))),
        "decoder_input_ids": np.zeros((len(pairs), longest(1, 1))),
    }
    batch |= {
        "attention_mask": np.zeros_like(batch["input_ids"]),
        "labels": np.full_like(batch["decoder_input_ids"], -100),
    }
    for row, (source, target) in enumerate(pairs):
        batch["input_ids"][row, : len(source)], batch["attention_mask"][row, : len(source)] = (
            source,
            1,
        )
        (
            batch["decoder_input_ids"][row, : len(target) - 1],
            batch["labels"][row, : len(target) - 1],
        ) = target[:-1], target[1:]
    return batch


CPU = {
    "transformer_tiny": functools.partial(
        packing, "Transformer-tiny", 4, 128, 256, 4, 4000, 16, 128
    )
}
GPU = {
    "transformer_base": functools.partial(
        packing, "Transformer base", 6, 512, 2048, 8, 37_000, 64, 256
    ),
    "transformer_big": functools.partial(
        packing, "Transformer big", 6, 1024, 4096, 16, 37_000, 64, 256
    ),
}

if __name__ == "__main__":
    main(
        __doc__,
        CPU | GPU,
        ("jax", "flax"),
        GPU if jax.default_backend() == "gpu" else CPU,
        data="folder with train.en and train.de",
    )
