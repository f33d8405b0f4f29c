"""Reading and replacing the activations of a model by name, without changing the model.

An activation is either the output of a module, whose name is the path of the module, such as
"decoder/layers/mlp", or an array within a module that `named` gives a name, such as
"decoder/layers/attention/weights". All layers of a stack share one name. Outside of `capture` and
`intervene`, the compiled program of a model contains no trace of this.
"""

import contextlib
import contextvars
import dataclasses
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax import config as configs
from transformer_jax.config import UserError

COLLECTION = "activations"
# A module can have named arrays beside its output, so the output needs a key of its own.
_OUTPUT = "output"

Replacement = jax.typing.ArrayLike | Callable[[Any, jax.Array | None], Any]


class _Layer(NamedTuple):
    """A layer of a stack that repeats a pattern of blocks."""

    number: jax.Array  # () int32, from 0
    repeat: jax.Array  # () int32: the repeat to which it belongs, from 0
    repeats: int


# These are context variables, because no argument must run through all models, and because a
# request of one thread must not affect models in another.
_current: contextvars.ContextVar = contextvars.ContextVar("activations", default=None)
_layer: contextvars.ContextVar = contextvars.ContextVar("layer", default=None)


@dataclasses.dataclass
class _Request:
    """The names to read and to replace, and the names that the model has computed so far."""

    read: Sequence[str]
    replace: Mapping[str, Replacement]
    computed: set[str] = dataclasses.field(default_factory=set)

    def wants(self, name: str) -> bool:
        # The name is recorded even if it is not wanted, so that error messages and `names` list it.
        self.computed.add(name)
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in (*self.read, *self.replace))

    def apply(self, module: nn.Module, key: str, name: str, x):
        """Replaces an activation, then stores it in the module's collection."""
        self.computed.add(name)
        # An activation is replaced before it is stored, so that `capture` returns what later
        # modules read.
        for pattern, replacement in self.replace.items():
            if fnmatch.fnmatchcase(name, pattern):
                x = _replaced(name, replacement, x)
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.read):
            module.sow(COLLECTION, key, x)
        return x

    def check(self) -> None:
        """Raises UserError for a name or pattern that no computed activation matches."""
        names = sorted(self.computed)
        for pattern in (*self.read, *self.replace):
            if not fnmatch.filter(names, pattern):
                hint = configs.did_you_mean(pattern, names)
                raise UserError(f"no activation {pattern!r}{hint}; there are {', '.join(names)}")


def _replaced(name: str, replacement: Replacement, x: Any) -> Any:
    """Returns the replacement of the activation `x`, with the shape and dtype of `x`."""
    layer = _layer.get()
    if callable(replacement):
        new = replacement(x, None if layer is None else layer.number)
    else:
        new = jnp.asarray(replacement)
        # Within a scan the number of the layer is traced, so an array for all layers is indexed at
        # run time.
        if layer is not None and new.ndim > x.ndim and len(new) == layer.repeats:
            new = new[layer.repeat]
    if not isinstance(x, jax.Array):
        return new
    if not _broadcasts(jnp.shape(new), x.shape):
        raise UserError(
            f"the replacement of {name} has the shape {jnp.shape(new)}: must broadcast to {x.shape}"
        )
    # The dtype is kept, because a float32 array would otherwise change all later layers.
    return jnp.broadcast_to(new, x.shape).astype(x.dtype)


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    aligned = zip(reversed(shape), reversed(target))
    return len(shape) <= len(target) and all(size in (1, other) for size, other in aligned)


def capture(
    model: nn.Module,
    params: Any,
    names: Sequence[str],
    *inputs,
    replace: Mapping[str, Replacement] | None = None,
    **options,
) -> dict[str, Any]:
    """Returns the named activations of `model` on `inputs`, as {name: activation}.

    A name may contain wildcards, as in "decoder/layers/*". The activations of a stack of layers
    have a leading axis of layers. A module that is called several times has a tuple of activations.

    Args:
      model: a Linen module.
      params: its parameters.
      names: names or patterns of names.
      *inputs: the arguments of `model.apply`, such as token ids (B, L).
      replace: replacements to apply at the same time, as in `intervene`.
      **options: further arguments of `model.apply`, such as method="hidden".

    Raises UserError for a name that the model does not compute.
    """
    request = _Request(names, replace or {})
    with _use(request):
        _, collections = model.apply({"params": params}, *inputs, **options, mutable=[COLLECTION])
    # The names are checked last, because which activations exist is known only after the model has
    # been traced.
    request.check()
    activations = {}
    leaves = jax.tree_util.tree_leaves_with_path(
        collections.get(COLLECTION, {}), is_leaf=lambda x: isinstance(x, tuple)
    )
    for path, values in leaves:
        path = [key.key for key in path]
        name = "/".join(path[:-1] if path[-1] == _OUTPUT else path)
        # The values are a tuple, because `sow` appends one for each call of the module.
        activations[name] = values[0] if len(values) == 1 else values
    return activations


def intervene(
    model: nn.Module,
    params: Any,
    replace: Mapping[str, Replacement],
    *inputs,
    **options,
) -> Any:
    """Returns the result of `model.apply` with activations replaced.

    `replace` maps a name or a pattern of names to an array or to a function (activation, layer) ->
    activation. `layer` is the number of the layer, () int32 from 0, or None outside a stack. Within
    a stack it is traced, so that a function which depends on it must use jnp.where. An array is
    broadcast to the activation of a layer; if it has a further leading axis, it holds one
    activation for each layer, as returned by `capture`. Raises UserError for a name that the model
    does not compute.
    """
    request = _Request((), replace)
    with _use(request):
        result = model.apply({"params": params}, *inputs, **options)
    request.check()
    return result


def names(model: nn.Module, params: Any, *inputs, **options) -> dict[str, Any]:
    """Returns the shapes and dtypes of all activations as {name: shape}, without computing them."""

    def all_activations(params, *inputs):
        return capture(model, params, ["*"], *inputs, **options)

    return jax.eval_shape(all_activations, params, *inputs)


def calls(function: Callable[[], Any]) -> tuple[Any, list[tuple[tuple[str, ...], str, Any]]]:
    """Returns function(), and (path of the module, method, result) of each call of a module in it.

    Calls are in the order in which they end. Operations run one by one, so that the layers of a
    scan are calls like all others; this is slow, and meant for a few rows.
    """
    found = []

    def intercept(call, args, kwargs, context):
        result = call(*args, **kwargs)
        found.append((context.module.path, context.method_name, result))
        return result

    with jax.disable_jit(), nn.intercept_methods(intercept):
        return function(), found


def named(module: nn.Module, key: str, x: jax.Array) -> jax.Array:
    """Names an array within a module by the module's path and `key`.

    Returns the array, or its replacement if `intervene` has one.
    """
    request = _current.get()
    return x if request is None else request.apply(module, key, _join(module, key), x)


def requested(module: nn.Module, key: str) -> bool:
    """Whether the array named `key` of `module` is read or replaced."""
    request = _current.get()
    return request is not None and request.wants(_join(module, key))


def replaced() -> bool:
    """Whether any activation is replaced, in which case a stack must use `at_layer`."""
    request = _current.get()
    return request is not None and bool(request.replace)


@contextlib.contextmanager
def at_layer(number: jax.Array | None, repeats: int, pattern: int):
    """A context in which replacement functions receive `number` as their `layer`.

    The stack consists of `repeats` repeats of a pattern of `pattern` blocks.
    """
    layer = None if number is None else _Layer(number, number // pattern, repeats)
    token = _layer.set(layer)
    try:
        yield
    finally:
        _layer.reset(token)


def _join(module: nn.Module, *keys: str) -> str:
    return "/".join((*module.path, *keys))


@contextlib.contextmanager
def _use(request: _Request):
    """A context in which the outputs of modules and named arrays are read and replaced."""

    def intercept(call, args, kwargs, context):
        output = call(*args, **kwargs)
        # The model itself has no path, and its output is the result of the call.
        if context.method_name != "__call__" or not context.module.path:
            return output
        return request.apply(context.module, _OUTPUT, _join(context.module), output)

    token = _current.set(request)
    try:
        with nn.intercept_methods(intercept):
            yield
    finally:
        _current.reset(token)
