"""Word vectors by skip-gram or CBOW with negative sampling (Mikolov et al. 2013)."""

import dataclasses
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.config import NonNegativeFloat, PositiveInt, UserError, build_model
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.distributed import sharding
from transformer_jax.families.word_vectors.word_contexts import WordTexts
from transformer_jax.families.word_vectors.words import WordTask, negative_sampling

# Plain stochastic gradient descent: the loss applies the update of each block itself, so that the
# next block reads the updated vectors, and the optimizer must repeat exactly these updates.
_DESCENT = dict(name="sgd", momentum=0.0, weight_decay=0.0, clip_norm=0.0, groups=())


@dataclasses.dataclass
class WordVectorsTask(WordTask):
    """Skip-gram and CBOW as in the published code word2vec.c, with a few differences.

    The words of a block share their noise words, and the gradients of a block are summed before an
    update. The gradient of CBOW is taken of its window's mean, which word2vec.c fails to divide
    by the number of words (Irsoy et al. 2021, section 3). Windows end at the end of a row, as they
    do at the end of a document.
    """

    # A block reads vectors that earlier blocks of all rows have updated.
    sums_over_rows: ClassVar[bool] = False

    # skip_gram: a word predicts each word of its window; cbow: the mean of the window predicts it
    objective: Literal["skip_gram", "cbow"] = "skip_gram"
    # most words on each side of a word, for which the number is drawn from 1 to this one
    window: PositiveInt = 5
    negatives: PositiveInt = 5  # noise words of a pair of words
    # relative frequency above which words are subsampled; 0: no subsampling
    sample: NonNegativeFloat = 1e-3
    length: PositiveInt = 8192  # words of a row
    block: PositiveInt = 64  # words whose gradients are summed, and that share their noise words
    shared_noise: PositiveInt = 64  # noise words of a block

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = {"loss": 1.0}
        _check_model(self.config, self.model)
        _check_optimizer(self.config)
        if self.length % self.block:
            raise UserError(
                f"config.task.length={self.length}: must be a multiple of "
                f"config.task.block={self.block}"
            )

    @cached_property
    def texts(self) -> WordTexts:
        return WordTexts(
            self.config,
            length=self.length,
            block=self.block,
            window=self.window,
            noise=self.shared_noise,
            sample=self.sample,
            vocab_size=self.model.vocab_size,
        )

    def batch_spec(self, row_shape: int):
        shapes = dict.fromkeys(("tokens", "texts", "windows"), (self.length,))
        shapes["noise"] = (self.length // self.block, self.shared_noise)
        return self.int32_spec(shapes)

    def init(self, rng):
        return self.model.init(rng, method=_tables)["params"]

    def weights(self, batch):
        # The learning rate is per pair of words, as in word2vec.c, so their gradients are summed.
        return {"loss": jnp.float32(1)}

    def loss(self, params, batch, context: Context) -> Loss:
        tables = self.model.apply({"params": params}, method=_tables)
        numbers = jnp.arange(self.length // self.block)
        loss = in_turns(
            self._looked_up, self._loss_of_block, tables, (batch, numbers), context.rate
        )
        filled = (batch["texts"] > 0).sum(dtype=jnp.int32)
        pairs = jax.vmap(partial(self._num_pairs, batch))(numbers).sum()
        metrics = {
            "loss": (loss, pairs),
            "filled": (filled, jnp.int32(batch["texts"].size)),
        }
        return Loss({"loss": loss}, metrics)

    def _looked_up(self, batch, number):
        """Returns the ids of a block in both tables, and (pairs, repeats) of its targets.

        A block of S words has S + 2 W neighbors, where W is the window. In skip-gram, its words are
        the inputs and the neighbors the targets. In CBOW, the neighbors are the inputs and the
        words the targets.
        """
        words, neighbors = self._words(batch["tokens"], number)
        noise = jax.lax.dynamic_index_in_dim(batch["noise"], number, 1, keepdims=False)
        near = self._near(batch, number)  # (B, S, T)
        targets = neighbors if self.objective == "skip_gram" else words
        repeats = (targets[:, :, None] == noise[:, None]).astype(jnp.float32)  # (B, targets, K)
        read = words if self.objective == "skip_gram" else neighbors
        ids = (read, jnp.concatenate([targets, noise], axis=1))
        return ids, (near, repeats)

    def _loss_of_block(self, vectors, rest):
        """Returns the loss of a block, given its input vectors and its target and noise vectors."""
        sampled = partial(negative_sampling, negatives=self.negatives)
        near, repeats = rest
        read, predicted = vectors
        targets, noise = jnp.split(predicted, [repeats.shape[1]], axis=1)
        if self.objective == "skip_gram":
            return sampled(read, targets, noise, near, repeats)
        counts = near.sum(axis=-1, keepdims=True)  # (B, S, 1)
        # A word without neighbors has no mean. It gets a vector of zeros, and is no pair.
        means = jnp.einsum("bst,btm->bsm", near, read) / jnp.maximum(counts, 1)
        pairs = jnp.eye(near.shape[1]) * jnp.minimum(counts, 1)
        return sampled(means, targets, noise, pairs, repeats)

    def _near(self, batch, number) -> Float[Array, "B S T"]:
        """Returns 1 where a neighbor is in the window of a word and in the same text, else 0."""
        texts, texts_near = self._words(batch["texts"], number)
        sizes, _ = self._words(batch["windows"], number)
        words, neighbors = jnp.arange(self.block)[:, None], jnp.arange(texts_near.shape[1])[None]
        distance = jnp.abs(words + self.window - neighbors)  # (S, T)
        near = (distance > 0) & (distance <= sizes[..., None])
        return (near & (texts[..., None] == texts_near[:, None])).astype(jnp.float32)

    def _num_pairs(self, batch, number) -> Int[Array, ""]:
        near = self._near(batch, number)
        per_word = near if self.objective == "skip_gram" else near.max(axis=-1)
        return per_word.sum().astype(jnp.int32)

    def _words(self, values: Int[Array, "B L"], number) -> tuple[jax.Array, jax.Array]:
        """Returns the values of a block's words (B, S) and of its neighbors (B, S + 2 W)."""
        around = jnp.pad(values, ((0, 0), (self.window, self.window)))
        around = sharding.constrain(around, "batch", None)
        neighbors = jax.lax.dynamic_slice_in_dim(
            around, number * self.block, self.block + 2 * self.window, axis=1
        )
        return neighbors[:, self.window : -self.window], neighbors

    def flops(self, row_shape: int = 0) -> float:
        columns = self.block + 2 * self.window + self.shared_noise
        return 3 * 2.0 * self.length * columns * self.model.d_model


def _tables(model) -> tuple[jax.Array, jax.Array]:
    """Returns the table of input vectors and the table of output vectors, (V, M) each."""
    return model.vectors(), model.output().table


def _check_model(config, model) -> None:
    if "static" not in model.can:
        raise UserError(
            f"config.model.name={config.model.name!r}: has no table of word vectors alone; take "
            "word_vectors"
        )


def _check_optimizer(config) -> None:
    """Raises UserError if an update is not plain stochastic gradient descent."""
    for key, value in _DESCENT.items():
        if config.optimizer[key] != value:
            raise UserError(
                f"config.optimizer.{key}={config.optimizer[key]!r}: word vectors learn by plain "
                f"stochastic gradient descent; set it to {value!r}"
            )
    if config.train.freeze_vectors:
        raise UserError(
            "config.train.freeze_vectors=True: word vectors are what this task learns; set it to "
            "False"
        )
    if config.train.accumulation != 1:
        raise UserError(
            f"config.train.accumulation={config.train.accumulation}: the blocks of a batch follow "
            "each other; set it to 1"
        )


Tables = tuple[jax.Array, ...]  # (V, M) each


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def in_turns(
    look_up: Callable[[Any, jax.Array], tuple[tuple[jax.Array, ...], Any]],
    loss_of: Callable[[tuple[jax.Array, ...], Any], jax.Array],
    tables: Tables,
    rows: tuple[Any, jax.Array],
    rate: jax.Array,
) -> jax.Array:
    """Returns the sum of the losses of blocks, each after the updates by the blocks before it.

    The gradient of the tables is the sum of the gradients of all blocks, each at the tables that
    the block reads. An update by this gradient at the learning rate `rate` () therefore gives the
    tables after the last block. Within the loop, an update is a scatter that writes only the rows
    which a block reads, where the gradient of an ordinary loss would be a whole table for each
    block. At rate 0, all blocks read the same tables.

    Args:
      look_up: (rows, index of a block) -> ids (B, n) in each table, and the rest of the block.
      loss_of: (vectors (B, n, M) of each table, the rest) -> losses of the rows (B,).
      tables: (V, M) each.
      rows: a tree of arrays (B, ...), and the indices of the blocks (blocks,).
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
        # Each device updates its own columns of the tables, for the rows of all devices. The ids
        # are therefore replicated, and the gradients are resharded from rows to columns.
        ids = [sharding.constrain(table_ids, None, None) for table_ids in ids]
        vectors = tuple(
            sharding.constrain(table[table_ids], "batch", None, None)
            for table, table_ids in zip(tables, ids)
        )
        grads, losses = jax.grad(summed, has_aux=True)(vectors, rest)
        grads = [sharding.constrain(grad, None, None, "embed") for grad in grads]
        tables = tuple(
            table.at[table_ids].add(-rate * grad)
            for table, table_ids, grad in zip(tables, ids, grads)
        )
        return tables, losses

    # The losses are summed after the loop. Within it, the sum over devices would not be ordered
    # with respect to the other collectives of a block, and the virtual devices of a CPU, which may
    # start them in different orders, would wait for each other forever.
    tables, losses = jax.lax.scan(block, tables, numbers)
    return losses.sum(), tables


def _forward(look_up, loss_of, tables, rows, rate):
    loss, after = _descended(look_up, loss_of, tables, rows, rate)
    # The tables before and after suffice, so the memory does not depend on the number of blocks.
    return loss, (tables, after, rate)


def _backward(look_up, loss_of, residuals, cotangent):
    before, after, rate = residuals
    # `after` is `before` minus the rate times the summed gradients. A schedule may end at a rate of
    # 0, which changes nothing: the difference is 0 then, and 0 / 0 would stop the run.
    divisor = jnp.where(rate == 0, 1, rate)
    grads = jax.tree.map(lambda x, y: cotangent * (x - y) / divisor, before, after)
    # Rows are integers, and the learning rate is no parameter, so neither has a gradient.
    return grads, None, None


in_turns.defvjp(_forward, _backward)
