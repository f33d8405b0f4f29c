"""The programs of beam search and generation, lowered for given shapes but never run."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from transformer_jax.distributed import sharding
from transformer_jax.distributed.sharding import Placement
from transformer_jax.inference.batching import rounded_up
from transformer_jax.inference.beam_search import BeamSearch
from transformer_jax.inference.generation import LENGTH_MULTIPLE, Fixed, Programs, Sampling, Window
from transformer_jax.inference.stream import Stream
from transformer_jax.inference.translating import most_tokens
from transformer_jax.layers.decoding import logical_axes

_TOKEN = 1  # used for all special tokens, since no tokenizer is opened


class Decoding(NamedTuple):
    """A decoding program, and the larger arrays that are on the devices while it runs."""

    lowered: jax.stages.Lowered
    held: Any


def beam_search(model, params, config, length: int) -> dict[str, Decoding]:
    """Returns the programs of the beam search of `config`, for sources of `length` tokens.

    The KV cache has room for the longest outputs that `config.decode` allows. `params` are shapes
    with shardings, before `for_decoding`.
    """
    placement = Placement.of(params, config.mesh).decoding()
    search = BeamSearch.of(config.decode, _TOKEN)
    num_rows = placement.rows(config.decode.batch)
    stream = Stream(model, search, num_rows, _TOKEN, placement)
    prepared = _for_decoding(model, params)
    source = _int32(3, *stream.packed_shape(length))
    inputs = (prepared, source, _int32(num_rows, length), _int32(num_rows))
    read = _split(jax.eval_shape(lambda *x: Stream.begin(stream, *x), *inputs), placement)
    slots = stream.slots(length, most_tokens(config.decode, length))
    empty = jax.eval_shape(lambda p: Stream.empty(stream, p, length, slots), prepared)
    running = _split(empty, placement)
    held = (prepared, running)
    return {
        # Both count what they do not use, because the running search stays on the devices while
        # inputs are encoded, and the encoded inputs stay there while the search goes on.
        "reading": Decoding(Stream.begin.lower(stream, *inputs), held),
        "searching": Decoding(
            Stream.advance.lower(stream, prepared, running, np.int32(1)), (*held, read)
        ),
    }


def generation(model, params, config, max_tokens: int, how: Sampling) -> Decoding:
    """Returns the program that generates one text of `max_tokens` tokens.

    `params` are shapes with shardings, before `for_decoding`.
    """
    placement = Placement.of(params, config.mesh).decoding()
    rows = placement.rows(1)
    slots = min(rounded_up(1 + max_tokens, LENGTH_MULTIPLE), model.window)
    keys = jax.ShapeDtypeStruct((rows, 2), jnp.uint32)
    fixed = Fixed(keys, num_before=_int32(rows), limits=_int32(rows))
    window = Window(_int32(rows, min(LENGTH_MULTIPLE, slots)), _int32(rows), None, fixed)
    prepared = _for_decoding(model, params)
    programs = Programs(model, (_TOKEN,), placement)
    return Decoding(Programs.begin.lower(programs, prepared, window, slots, slots, how), prepared)


def _int32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _for_decoding(model, params):
    """Returns the shapes and shardings of the parameters after `model.for_decoding`."""
    # XLA chooses the shardings of the outputs, so only the compiled program knows them.
    program = jax.jit(model.for_decoding).lower(params)
    shardings = program.compile().output_shardings
    return jax.tree.map(_placed, program.out_info, shardings)


def _split(shapes, placement: Placement):
    """Returns the shapes with the shardings of `layers.decoding.split`."""

    def with_sharding(shape, axes):
        spec = sharding.spec(axes, dict(placement.rules))
        return _placed(shape, NamedSharding(placement.mesh, spec))

    return jax.tree.map(with_sharding, shapes, logical_axes(shapes))


def _placed(shape, placed) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=placed)
