"""Measures training steps on random rows, after compilation, against torch.

python benchmarks/train_step.py [--json=FILE] [--case=masked_head] [--case=gpt_cpu ...] [--tiny]

The peers are models of Hugging Face on torch, eager and compiled, in the same shapes
(benchmarks/peers.py says how to install them). On a GPU, each is measured with each of its best
attention kernels. Both sides take turns on the same rows. They update float32 weights by AdamW, and
compute in float32 on a CPU and in bfloat16 on a GPU. There is no dropout. `masked_head` needs no
torch.
"""

import functools
import os
from collections.abc import Callable

# The peers use the GPU's memory, too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
from harness import apart, in_turn, main, sides, tokens_beside
from steps import (
    Peer,
    bert_peer,
    bert_rows,
    gpt_peer,
    gpt_rows,
    marian_peer,
    our_step,
    peer_step,
    translation_rows,
)

from transformer_jax import hardware


def masked_head(tiny: bool):
    """The masked-token head of BERT over a vocabulary of 30,522, with rows of 128 tokens.

    Ours computes the logits of the 20 masked positions only, the peer those of all positions.
    """
    rows, length, masked = (2, 32, 5) if tiny else (16, 128, 20)
    for name, layers, width in (("tiny", 2, 128), ("mini", 4, 256), ("small", 4, 512)):
        sizes = dict(rows=rows, length=length, masked=masked, layers=layers, width=width)
        spent = in_turn(
            {
                predicted: our_step(bert_rows, sizes | {"predicted": predicted})
                for predicted in (masked, length)
            },
            2 if tiny else 7,
        )
        yield {
            "case": f"BERT-{name}, {rows} rows of {length}, masked positions",
            "ours": rows / spent[masked],
            "unit": "examples/s",
            "peer": rows / spent[length],
            "peer_name": "all positions",
            "ratio": spent[length] / spent[masked],
        }


def gpt(tiny: bool, name: str, sizes: dict[str, int]):
    """A GPT-2 of the given sizes. Both sides pad its vocabulary to a multiple of 64."""
    if tiny:
        sizes = sizes | {"rows": 2, "length": 64}
    yield from against_torch(
        f"{name}, {sizes['rows']} rows of {sizes['length']}",
        gpt_rows,
        {"": sizes},
        Peer("gpt", gpt_peer(sizes)),
        tiny,
    )


def bert(tiny: bool, name: str, sizes: dict[str, int]):
    """A BERT of the given sizes.

    In the first variant both sides compute the logits of all positions, as Hugging Face's model
    does. In the second, ours computes those of the masked positions only.
    """
    if tiny:
        sizes = sizes | {"rows": 2, "length": 32, "masked": 5}
    variants = {
        ", all positions": sizes | {"predicted": sizes["length"]},
        ", ours masked alone": sizes | {"predicted": sizes["masked"]},
    }
    yield from against_torch(
        f"{name}, {sizes['rows']} rows of {sizes['length']}",
        bert_rows,
        variants,
        Peer("bert", bert_peer(sizes)),
        tiny,
    )


def transformer(tiny: bool, name: str, sizes: dict[str, int]):
    """The encoder-decoder on full rows: without padding, packing makes no difference."""
    if tiny:
        sizes = sizes | {"rows": 2, "length": 16}
    yield from against_torch(
        f"{name}, {sizes['rows']} rows of {sizes['length']}+{sizes['length']}",
        translation_rows,
        {"": sizes},
        Peer("marian", marian_peer(sizes)),
        tiny,
    )


def against_torch(case: str, rows_of: Callable, variants: dict[str, dict], peer: Peer, tiny: bool):
    """Yields a row for each of our variants and each way in which torch trains the first."""
    import peers

    ways = [name for name, options in peers.TRAINING.items() if not (tiny and options["compiled"])]
    first, sizes = next(iter(variants.items()))
    makers = {
        variant: ("jax", functools.partial(our_step, rows_of, variant_sizes))
        for variant, variant_sizes in variants.items()
    }
    makers |= {
        way: ("torch", functools.partial(peer_step, rows_of, sizes, peer, way)) for way in ways
    }
    spent = sides(makers, 2 if tiny else 9)
    ceiling = apart(matmul_rate)
    tokens = sizes["rows"] * sizes["length"]
    for variant, variant_sizes in variants.items():
        task, batch, _ = rows_of(**variant_sizes)
        share = task.flops() * len(next(iter(batch.values()))) / spent[variant] / ceiling
        # Other releases of JAX run the first variant.
        peers = spent.keys() - makers.keys() if variant == first else ()
        shown = {"ours": spent[variant]}
        shown |= {name: spent[name] for name in spent if name in ways or name in peers}
        yield from tokens_beside(case + variant, shown, tokens, share=share)


def matmul_rate() -> float:
    """Returns the FLOP/s of large matrix products, in the dtype that models compute in here."""
    return hardware.measured(jax.default_backend())


def _case(function: Callable, name: str, **sizes: int) -> Callable:
    return functools.partial(function, name=name, sizes=sizes)


CPU = {
    "masked_head": masked_head,
    "gpt_cpu": _case(
        gpt, "GPT, 4 layers of 512", layers=4, width=512, vocab_size=8192, rows=8, length=256
    ),
    "bert_small": _case(bert, "BERT-small", layers=4, width=512, rows=16, length=128, masked=20),
    "transformer_tiny": _case(
        transformer,
        "Transformer-tiny",
        layers=4,
        width=128,
        d_ff=256,
        heads=4,
        vocab_size=4000,
        rows=32,
        length=64,
    ),
}
GPU = {
    "gpt2_124m": _case(
        gpt, "GPT-2 124M", layers=12, width=768, vocab_size=50_257, rows=32, length=1024
    ),
    "gpt2_355m": _case(
        gpt, "GPT-2 355M", layers=24, width=1024, vocab_size=50_257, rows=16, length=1024
    ),
    "bert_large_128": _case(
        bert, "BERT-large", layers=24, width=1024, rows=128, length=128, masked=20
    ),
    "bert_large_512": _case(
        bert, "BERT-large", layers=24, width=1024, rows=32, length=512, masked=80
    ),
    "transformer_base": _case(
        transformer,
        "Transformer base",
        layers=6,
        width=512,
        d_ff=2048,
        heads=8,
        vocab_size=37_000,
        rows=96,
        length=256,
    ),
    "transformer_big": _case(
        transformer,
        "Transformer big",
        layers=6,
        width=1024,
        d_ff=4096,
        heads=16,
        vocab_size=37_000,
        rows=96,
        length=256,
    ),
}

if __name__ == "__main__":
    default = GPU if jax.default_backend() == "gpu" else CPU
    main(__doc__, CPU | GPU, ("jax", "flax"), default, releases=True)
