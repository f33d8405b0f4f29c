"""Gradient descent over the blocks of a batch, one after the other, as the gradient of a loss."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from transformer_jax.distributed import sharding

Tables = tuple[jax.Array, ...]  # (V, M) each


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def in_turns(
    look_up: Callable[[Any, jax.Array], tuple[tuple[jax.Array, ...], Any]],
    loss_of: Callable[[tuple[jax.Array, ...], Any], jax.Array],
    tables: Tables,
    rows: tuple[Any, jax.Array],
    rate: jax.Array,
) -> jax.Array:
    """Returns the sum of the losses of blocks, each after an update by the blocks before it.

    The gradient of the tables is the sum of the gradients of all blocks, each at the tables that
    its loss sees. An update by it at the learning rate `rate` () thus gives the tables after the
    last block: stochastic gradient descent, which writes only the rows that a block reads. At rate
    0 all blocks see the same tables.

    Args:
      look_up: (rows, number of a block) -> ids (B, n) of each table, and the rest of the block.
      loss_of: (vectors (B, n, M) of each table, the rest) -> losses of the rows (B,).
      tables: (V, M) each.
      rows: a tree of arrays (B, ...), and the numbers of the blocks (blocks,).
    """
    return _descended(look_up, loss_of, tables, rows, rate)[0]


def _descended(look_up, loss_of, tables, rows, rate) -> tuple[jax.Array, Tables]:
    """Returns the loss, and the tables after the last block."""
    arrays, numbers = rows

    def summed(vectors, rest):
        losses = loss_of(vectors, rest)
        return losses.sum(), losses

    def block(tables, number):
        ids, rest = look_up(arrays, number)
        # Every device updates its columns of the tables by the vectors of all rows.
        ids = [sharding.constrain(of_table, None, None) for of_table in ids]
        vectors = tuple(
            sharding.constrain(table[of_table], "batch", None, None)
            for table, of_table in zip(tables, ids)
        )
        grads, losses = jax.grad(summed, has_aux=True)(vectors, rest)
        grads = [sharding.constrain(grad, None, None, "embed") for grad in grads]
        tables = tuple(
            table.at[of_table].add(-rate * grad)
            for table, of_table, grad in zip(tables, ids, grads)
        )
        return tables, losses

    # The losses are summed behind the loop. A sum over the devices beside the other collectives of
    # a block would have no order with them, and virtual devices of a CPU, which begin them in
    # different orders, wait for each other for ever.
    tables, losses = jax.lax.scan(block, tables, numbers)
    return losses.sum(), tables


def _forward(look_up, loss_of, tables, rows, rate):
    loss, after = _descended(look_up, loss_of, tables, rows, rate)
    return loss, (tables, after, rate)


def _backward(look_up, loss_of, residuals, cotangent):
    before, after, rate = residuals
    grads = jax.tree.map(lambda x, y: cotangent * (x - y) / rate, before, after)
    return grads, None, None


in_turns.defvjp(_forward, _backward)
