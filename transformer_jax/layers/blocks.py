"""A Transformer layer and its parts, and a stack of layers."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from transformer_jax.config import UserError
from transformer_jax.distributed import sharding
from transformer_jax.layers import activations, pipeline
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import (
    PRODUCTS,
    STATISTICS,
    Dropout,
    Linear,
    declared,
    recomputed,
)

# --------------------------------------------------------------------------------------------------
# Layer normalization and RMS normalization. Both are computed in float32, because bfloat16 has too
# few bits for means and variances.


class LayerNorm(nn.Module):
    """Layer normalization over the last axis (Ba et al. 2016): (..., M) -> (..., M).

    The computation is in float32; the result has the dtype of x.
    """

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Float[Array, "*batch M"]) -> Float[Array, "*batch M"]:
        shape = (x.shape[-1],)
        scale_init = declared(nn.initializers.ones, ("norm",))
        bias_init = declared(nn.initializers.zeros, ("norm",))
        scale = self.param("scale", scale_init, shape)  # (M,)
        bias = self.param("bias", bias_init, shape)  # (M,)
        return recomputed(_layer_norm, x)(x, scale, bias, self.epsilon)


class RMSNorm(nn.Module):
    """Root mean square normalization (Zhang & Sennrich 2019): (..., M) -> (..., M).

    Divides by the root mean square over the last axis and has no bias. The computation is in
    float32; the result has the dtype of x.
    """

    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Float[Array, "*batch M"]) -> Float[Array, "*batch M"]:
        init = declared(nn.initializers.ones, ("norm",))
        scale = self.param("scale", init, (x.shape[-1],))  # (M,)
        return recomputed(_rms_norm, x)(x, scale, self.epsilon)


def _layer_norm(x, scale, bias, epsilon):
    y = x.astype(jnp.float32)
    y = y - checkpoint_name(y.mean(axis=-1, keepdims=True), STATISTICS)
    # The variance is computed from the centered values, because the mean square minus the squared
    # mean would cancel for a large mean.
    variance = checkpoint_name(jnp.square(y).mean(axis=-1, keepdims=True), STATISTICS)
    y = y * jax.lax.rsqrt(variance + epsilon)
    return (y * scale + bias).astype(x.dtype)


def _rms_norm(x, scale, epsilon):
    y = x.astype(jnp.float32)
    mean_square = checkpoint_name(jnp.square(y).mean(axis=-1, keepdims=True), STATISTICS)
    y = y * jax.lax.rsqrt(mean_square + epsilon)
    return (y * scale).astype(x.dtype)


# --------------------------------------------------------------------------------------------------
# The position-wise feed-forward network.
#
# The hidden layer is split over the mesh axis tensor, because each device can compute its own
# units, and only the sum in the second product crosses devices.


class MLP(nn.Module):
    """activation(x W1 + b1) W2 + b2 (Vaswani et al. 2017, section 3.3): (B, L, M) -> (B, L, M).

    With `gated` it is (activation(x W1 + b1) * (x V + c)) W2 + b2 (Shazeer 2020): SwiGLU with
    jax.nn.silu, GEGLU with jax.nn.gelu.
    """

    d_ff: int
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu
    gated: bool = False
    use_bias: bool = True
    kernel_init: nn.initializers.Initializer = nn.initializers.xavier_uniform()
    # Initializer of the output kernel; None: kernel_init.
    output_init: nn.initializers.Initializer | None = None
    dropout: float = 0.0  # on the hidden layer
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B L M"], *, train: bool = False) -> Float[Array, "B L M"]:
        y = self._hidden("wi", x)  # (B, L, F)
        y = recomputed(self.activation, y)(y)
        if self.gated:
            y = y * self._hidden("wv", x)
        y = sharding.constrain(y, "batch", "length", "mlp")
        y = activations.named(self, "hidden", y)
        y = Dropout(self.dropout)(y, train=train)
        output = Linear(
            (self.d_ff,),
            (x.shape[-1],),
            axes=("mlp", "embed"),
            use_bias=self.use_bias,
            kernel_init=self.output_init or self.kernel_init,
            dtype=self.dtype,
            name="wo",
        )
        return output(y)

    def _hidden(self, name: str, x: Float[Array, "B L M"]) -> Float[Array, "B L F"]:
        """Projects x to the hidden layer."""
        projection = Linear(
            (x.shape[-1],),
            (self.d_ff,),
            axes=("embed", "mlp"),
            use_bias=self.use_bias,
            kernel_init=self.kernel_init,
            dtype=self.dtype,
            name=name,
        )
        return projection(x)


# --------------------------------------------------------------------------------------------------
# A Transformer layer, and its variant with LayerDrop.
#
# A layer receives its sublayers as constructors, so that one class serves all kinds of attention,
# MLP and norm.


class Block(nn.Module):
    """Self-attention, optional cross-attention, and MLP: (B, L, M) -> (B, L, M).

    Each sublayer f is a residual branch:
        post-LN: x <- norm(x + dropout(f(x))) (Vaswani et al. 2017, section 3.1)
        pre-LN: x <- x + dropout(f(norm(x))) (Xiong et al. 2020)

    Further keyword arguments, such as positions or a bias of the scores, are passed to
    self-attention.
    """

    # Constructors, to which the model has bound all options but the name.
    attention: Callable[..., nn.Module]
    mlp: Callable[..., nn.Module]
    norm: Callable[..., nn.Module]
    cross_attention: Callable[..., nn.Module] | None = None
    norm_position: Literal["post", "pre"] = "post"
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L M"],
        encoder_output: Float[Array, "B S N"] | None = None,
        *,
        mask: Mask,
        cross_mask: Mask | None = None,
        train: bool = False,
        decode: int = 0,
        **options,
    ) -> Float[Array, "B L M"]:
        def residual(x, sublayer, name):
            norm = self.norm(name=f"{name}_norm")
            y = sublayer(norm(x) if self.norm_position == "pre" else x)
            x = x + Dropout(self.dropout)(y, train=train)
            x = norm(x) if self.norm_position == "post" else x
            # The features are constrained, because the partitioner could otherwise split them as
            # the parameters of the sublayers are split.
            x = sharding.constrain(x, "batch", "length", None)
            return activations.named(self, f"after_{name}", x)

        x = activations.named(self, "input", x)
        attention = self.attention(name="attention")
        attend = partial(attention, mask=mask, train=train, decode=decode, **options)
        x = residual(x, attend, "attention")
        if self.cross_attention is not None:
            cross_attention = self.cross_attention(name="cross_attention")
            attend = partial(
                cross_attention,
                encoder_output=encoder_output,
                mask=cross_mask,
                train=train,
                decode=decode,
            )
            x = residual(x, attend, "cross_attention")
        return residual(x, partial(self.mlp(name="mlp"), train=train), "mlp")


class DroppedBlock(Block):
    """A layer that training skips with probability `rate` (LayerDrop, Fan et al. 2019).

    (B, L, M) -> (B, L, M). One draw per step decides for the whole batch, and the outputs are not
    rescaled.
    """

    rate: float = 0.0

    def __call__(
        self, x: Float[Array, "B L M"], *args, train: bool = False, **options
    ) -> Float[Array, "B L M"]:
        y = super().__call__(x, *args, train=train, **options)
        if not train or not self.rate:
            return y
        # The layer is computed even if it is skipped. LayerDrop serves here as regularization, not
        # to save time.
        return jnp.where(jax.random.bernoulli(self.make_rng("dropout"), self.rate), x, y)


# --------------------------------------------------------------------------------------------------
# A stack of layers, in training and in decoding.
#
# Training scans over stacked parameters, so that the time of compilation does not grow with the
# number of layers. Decoding unrolls them, because a loop over tokens would slice the stack again
# for each token.

# What a layer saves for the backward pass, which recomputes the rest: everything, the products with
# parameters, because they take longest to recompute, or only its input.
REMAT = {
    "none": None,  # saves all activations
    # saves matrix products
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names(PRODUCTS),
    ),
    "full": jax.checkpoint_policies.nothing_saveable,  # saves only the input of each layer
}
Remat = Literal["none", "dots", "full"]

# The window of layers without one: it exceeds any length, so that the scan can compile one layer
# for both kinds.
_NO_WINDOW = 2**30
# The keyword arguments of a block that have a row for each row of x, or one for all rows.
_BY_ROW = {"bias", "cross_mask", "positions"}


class Stack(nn.Module):
    """`num_layers` blocks in sequence: (B, L, M) -> (B, L, M), or trees of arrays.

    `blocks` are constructors. They form a pattern that repeats over the layers, and nn.scan
    compiles one pattern. The parameters are named "layers" and stacked along a leading axis of
    repeats; if the pattern has several blocks, their names are "layers/block_0", "layers/block_1"
    and so on. With `shared`, all repeats have the same parameters, which are named "layer" and not
    stacked (Lan et al. 2019, section 3.1).

    `unroll` layers are unrolled in each iteration of the scan, which leaves the parameter tree
    unchanged. `windows` limit the attention distance and repeat over the layers; None is no limit.
    `dilations` are the dilations of these windows and repeat in the same way.

    A block may keep a state for each layer in the collection "state" and may sow auxiliary losses
    in the collection "losses". Both have a leading axis of repeats.

    Decoding unrolls all layers. Its collections are tuples with one entry for each repeat, and so
    are the parameters that `for_decoding` returns.

    If the mesh has the axis "pipeline", its stages divide the repeats (layers/pipeline.py), and the
    positional arguments, the mask and the arguments named in `_BY_ROW` must consist of arrays that
    have as many rows as x, or one row for all.
    """

    blocks: tuple[Callable[..., nn.Module], ...]
    num_layers: int
    shared: bool = False
    unroll: int = 1
    remat: Remat = "none"
    windows: tuple[int | None, ...] = (None,)
    dilations: tuple[int, ...] = (1,)

    @nn.compact
    def __call__(
        self,
        x: PyTree[Float[Array, "B ..."]],
        *args,
        mask: Mask,
        train: bool = False,
        decode: int = 0,
        every_layer: bool = False,
        **kwargs,
    ) -> PyTree[Float[Array, "..."]]:
        """Returns the output of the last layer (B, L, M).

        With `every_layer`, returns the outputs of all layers (layers, B, L, M).
        """
        if decode:
            masks = [mask.replace(**fields) for fields in self._windows_of_layers()]
            return self._decode(x, args, masks, decode=decode, **kwargs)
        if sharding.parts("layers") > 1 and not self.is_initializing():
            self._check_stages(every_layer, kwargs)
            return self._in_stages(x, args, mask=mask, train=train, **kwargs)

        by_layer = (self._repeats, len(self.blocks))
        mask, windows = self._with_windows(mask)
        # The scan carries the numbers of layers only for replacements, so that other programs do
        # not change.
        numbers = jnp.arange(self.num_layers).reshape(by_layer) if activations.replaced() else None

        def layers(pattern, x, scanned):
            outputs = []
            for index, block in enumerate(_blocks_of(pattern)):
                fields, number = jax.tree.map(lambda array, index=index: array[index], scanned)
                with activations.at_layer(number, self._repeats, len(self.blocks)):
                    x = block(x, *args, mask=mask.replace(**fields), train=train, **kwargs)
                outputs.append(x)
            return x, _stacked(outputs) if every_layer else None

        last_output, outputs = self._scan(layers)(
            self._pattern(name=self._name), x, (windows, numbers)
        )
        if not every_layer:
            return last_output
        return jax.tree.map(lambda every, one: every.reshape(-1, *one.shape), outputs, x)

    def _check_stages(self, every_layer: bool, kwargs: dict) -> None:
        """Raises UserError for what a pipeline can't compute."""
        causes = {
            "shares its layers": self.shared,
            "reads the outputs of all layers": every_layer,
            "replaces activations": activations.replaced(),
            f"gives its layers {', '.join({*kwargs} - _BY_ROW)}": not {*kwargs} <= _BY_ROW,
        }
        for cause, holds in causes.items():
            if holds:
                raise UserError(
                    "config.mesh.pipeline: each stage has its own layers, and passes on the output "
                    f"of the last one; this model {cause}; use --config.mesh.pipeline=1"
                )

    def _in_stages(self, x, args: tuple, *, mask: Mask, train: bool, **kwargs):
        """Applies the layers as the stages of a pipeline."""
        mask, windows = self._with_windows(mask)
        key = self.make_rng("dropout") if train and self.has_rng("dropout") else None
        num_rows = len(jax.tree.leaves(x)[0])
        # What has a row for each row of x goes through the stages with it. The rest is the same for
        # all rows, such as a bias that only distances determine.
        leaves, structure = jax.tree.flatten((args, mask, kwargs))
        for leaf in leaves:
            if jnp.ndim(leaf) and len(leaf) not in (1, num_rows):
                raise UserError(
                    f"config.mesh.pipeline: layers read an array {jnp.shape(leaf)}, which has not "
                    f"one row for each of the {num_rows} rows of the batch"
                )
        is_row = [jnp.ndim(leaf) > 0 and len(leaf) == num_rows for leaf in leaves]

        def layer(variables, number, x, rows):
            params, fields = variables
            remaining = iter(rows)
            given = [next(remaining) if is_one else x for x, is_one in zip(leaves, is_row)]
            args, mask, kwargs = jax.tree.unflatten(structure, given)
            for index, block in enumerate(self.blocks):
                part = params if len(self.blocks) == 1 else params.get(f"block_{index}", {})
                draw = None if key is None else jax.random.fold_in(key, number)
                x, kept = block(parent=None).apply(
                    {"params": part},
                    x,
                    *args,
                    mask=mask.replace(**{name: values[index] for name, values in fields.items()}),
                    train=train,
                    **kwargs,
                    rngs={} if draw is None else {"dropout": jax.random.fold_in(draw, index)},
                    mutable=["state", "losses", activations.COLLECTION],
                )
                if jax.tree.leaves(kept):
                    raise UserError(
                        "config.mesh.pipeline: the stages pass on hidden states alone, but a layer "
                        f"of this model keeps {', '.join(kept)}, as layers with experts do; use "
                        "--config.mesh.pipeline=1"
                    )
            return x

        if self.remat != "none":
            layer = jax.checkpoint(layer, policy=REMAT[self.remat], prevent_cse=False)
        params = self.variables["params"][self._name]
        rows = [leaf for leaf, is_one in zip(leaves, is_row) if is_one]
        return pipeline.run(layer, (params, windows), x, rows)

    def _windows_of_layers(self) -> list[dict[str, int | None]]:
        """Returns the fields of each layer's mask: the window, and the dilation if any is set."""
        windows = itertools.cycle(self.windows)
        dilations = itertools.cycle(self.dilations)
        layers = itertools.islice(zip(windows, dilations), self.num_layers)
        if set(self.dilations) == {1}:
            return [{"window": window} for window, _ in layers]
        return [{"window": window, "dilation": dilation} for window, dilation in layers]

    def _with_windows(self, mask: Mask) -> tuple[Mask, dict[str, Int[Array, "N P"]]]:
        """Returns the mask with all windows, and the fields of each layer's mask.

        The fields (repeats, blocks of the pattern) are arrays, because the scan passes each layer
        its own window. A kernel that needs the window as a constant compiles a branch for each of
        the mask's `windows` (`Mask.for_each_window`).
        """
        layers = self._windows_of_layers()
        if not any(any(fields.values()) for fields in layers):
            return mask.replace(window=None), {}
        cases = [
            tuple(_NO_WINDOW if value is None else value for value in fields.values())
            for fields in layers
        ]
        windows, *dilations = zip(*sorted(set(cases)))
        mask = mask.replace(windows=windows, dilations=dilations[0] if dilations else ())
        columns = jnp.array(cases, jnp.int32).reshape(self._repeats, len(self.blocks), -1)
        return mask, {name: columns[..., i] for i, name in enumerate(layers[0])}

    def _scan(self, layers: Callable) -> Callable:
        """Returns the lifted scan of `layers` over the repeats of the pattern."""
        if self.remat != "none":
            # In a scan, the forward pass and its recomputation are different loops. In unrolled
            # layers, XLA would merge them as common subexpressions, which would undo the
            # rematerialization, unless `prevent_cse` is set. On a CPU it merges them nevertheless.
            unrolled = self.unroll >= self.num_layers
            layers = nn.remat(layers, policy=REMAT[self.remat], prevent_cse=unrolled)
        by_layer = dict.fromkeys(("state", "losses", activations.COLLECTION), 0)
        return nn.scan(
            layers,
            length=self._repeats,
            unroll=-(-self.unroll // len(self.blocks)),
            # Shared parameters are initialized once and hence with one key, whereas the repeats
            # must differ in dropout.
            split_rngs={"params": not self.shared, "dropout": True},
            metadata_params={nn.PARTITION_NAME: "layers"},
            variable_axes=by_layer | ({} if self.shared else {"params": 0}),
            variable_broadcast="params" if self.shared else False,
            # Flax traces the layers a second time to check that what they share does not depend on
            # the repeat. That trace also advances the counters of random numbers, so it stays
            # where they are drawn: runs and golden losses keep their numbers.
            check_constancy_invariants=self.is_initializing() or self.has_rng("dropout"),
        )

    @property
    def _repeats(self) -> int:
        return self.num_layers // len(self.blocks)

    @property
    def _name(self) -> str:
        """The name of the parameters. The name "layers" always means stacked parameters."""
        return "layer" if self.shared else "layers"

    def _pattern(self, **options) -> nn.Module:
        """Returns the block of the pattern, or a module with its blocks if there are several."""
        if len(self.blocks) == 1:
            return self.blocks[0](**options)
        return _Pattern(self.blocks, **options)

    def _decode(
        self, x: PyTree[Float[Array, "B L M"]], args: tuple, masks: list[Mask], **kwargs
    ) -> PyTree[Float[Array, "B L M"]]:
        """Applies the layers in sequence, layer i with masks[i], and updates the collections."""
        collections = {
            name: self.variables[name][self._name]
            for name in ("params", *_DECODED)
            if self.has_variable(name, self._name)
        }
        updates = [[] for _ in self.blocks]
        for number, mask in enumerate(masks):
            repeat, index = divmod(number, len(self.blocks))
            variables = {}
            for name, tree in collections.items():
                tree = tree if len(self.blocks) == 1 else tree.get(f"block_{index}", {})
                is_one = name == "params" and self.shared
                variables[name] = tree if is_one else _part_of(tree, repeat)
            # Layers are unrolled here, and XLA would otherwise gather the parameters of all of them
            # over fsdp before the first one.
            variables["params"], x = sharding.gather_after(variables["params"], x)
            block = self.blocks[index](parent=None)
            x, update = block.apply(variables, x, *args, mask=mask, **kwargs, mutable=_DECODED)
            updates[index].append(update)
        by_block = [jax.tree.map(lambda *leaves: leaves, *repeats) for repeats in updates]
        for name in _DECODED:
            trees = {f"block_{i}": tree[name] for i, tree in enumerate(by_block) if name in tree}
            if trees:
                tree = trees["block_0"] if len(self.blocks) == 1 else trees
                self.put_variable(name, self._name, tree)
        return x


# The collections that decoding updates. They hold a tuple for the repeats rather than one stacked
# array, so that a layer's cache is updated in place and never sliced out of the stack.
_DECODED = ["cache", "cross_cache", "state"]


class _Pattern(nn.Module):
    """The blocks of a pattern, which are named block_0, block_1 and so on."""

    constructors: tuple[Callable[..., nn.Module], ...]

    def setup(self):
        self.block = [constructor() for constructor in self.constructors]


def _blocks_of(pattern: nn.Module) -> Sequence[nn.Module]:
    return pattern.block if isinstance(pattern, _Pattern) else [pattern]


def _stacked(trees: Sequence):
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *trees)


def _part_of(variables: dict, number: int) -> dict:
    """Returns the variables of one repeat. The leaves are stacked arrays, or tuples."""

    def is_leaf(leaf):
        return isinstance(leaf, tuple)

    return jax.tree.map(lambda leaf: leaf[number], variables, is_leaf=is_leaf)


@partial(jax.jit, static_argnums=(1, 2))
def for_decoding(params: dict, dtype: DTypeLike, stacks: tuple[str, ...]) -> dict:
    """Returns the parameters of a model in the form in which decoding is fastest.

    Matrices are cast to the compute dtype `dtype`, and the stacked parameters of `stacks` become
    tuples with one entry for each layer. Otherwise the loop over tokens would cast and slice them
    again for each token.
    """

    def prepare(path, leaf):
        # Only these are cast, because norms compute in float32 and the vectors are small.
        if path[-1].key in ("kernel", "embedding"):
            leaf = leaf.astype(dtype)
        if path[0].key in stacks and path[1].key == "layers":
            leaf = tuple(leaf)
        return leaf

    return jax.tree_util.tree_map_with_path(prepare, params)
