"""Measures Longformer on one long row against transformers' in torch, and beside full attention.

python benchmarks/longformer.py [--json=FILE] [--case=forward] [--case=train] [--tiny]

Both sides have the same shapes: a window of 512, one global token, dropout off. `train` is a
forward and a backward pass, whose loss is the sum of the squares of the states. The rows of full
attention are BERT's in torch, with torch's scaled dot-product attention.
benchmarks/peers.py says how to install torch and transformers.
"""

import functools
import os
from collections.abc import Callable

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np
from harness import beside, main, sides

LENGTHS = (4096, 16_384)
SIZES = dict(layers=2, width=256, heads=4, window=512)
TINY = dict(layers=1, width=16, heads=2, window=16)
VOCABULARY = 1000


def forward(tiny: bool):
    """The states of one row."""
    yield from rows(tiny, train=False)


def train(tiny: bool):
    """The gradients of all parameters."""
    yield from rows(tiny, train=True)


def rows(tiny: bool, train: bool):
    sizes = TINY if tiny else SIZES
    for length in (64,) if tiny else LENGTHS:
        options = dict(length=length, train=train, **sizes)
        makers = {
            "ours": ("jax", functools.partial(our_call, **options)),
            "transformers, Longformer": ("torch", functools.partial(peer_call, **options)),
            "transformers, BERT": ("torch", functools.partial(full_call, **options)),
        }
        spent = sides(makers, 2 if tiny else 3)
        kind = "forward and backward" if train else "forward"
        case = f"Longformer, {kind}, a row of {length:,}"
        yield from beside(case, spent, "s", float)


def ids(length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(5, VOCABULARY, (1, length))


def our_call(
    *, length: int, train: bool, layers: int, width: int, heads: int, window: int
) -> Callable[[], None]:
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    from transformer_jax.families.longformer import Longformer

    model = Longformer(
        vocab_size=VOCABULARY,
        d_model=width,
        num_layers=layers,
        num_heads=heads,
        max_length=length,
        attention_window=(window,),
        dropout=0.0,
        attention_dropout=0.0,
        unroll=layers,
    )
    tokens = jnp.asarray(ids(length), jnp.int32)
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), tokens[:, : 2 * window]))["params"]
    options = dict(global_positions=jnp.zeros((1, 1), jnp.int32), method="hidden")

    def states(params):
        return model.apply({"params": params}, tokens, **options)

    function = jax.jit(
        jax.grad(lambda params: jnp.square(states(params)).sum()) if train else states
    )
    return lambda: jax.block_until_ready(function(params))


def peer_call(*, window: int, **options) -> Callable[[], None]:
    import longformer_peer

    return longformer_peer.longformer(ids(options.pop("length")), window=window, **options)


def full_call(*, window: int, **options) -> Callable[[], None]:
    import longformer_peer

    return longformer_peer.bert(ids(options.pop("length")), **options)


if __name__ == "__main__":
    main(__doc__, {"forward": forward, "train": train}, ["jax", "jaxlib", "flax"], releases=True)
