"""Activations of a model, read and replaced by name from outside.

An activation is the output of a module, named by the module's path such as "decoder/layers/mlp", or
an array within a module that `named` names, such as "decoder/layers/attention/weights". The layers
of a stack are one name. Outside `capture` and `intervene`, a model's program has no trace of this.
"""

import contextlib
import contextvars
import dataclasses
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax

from transformer_jax.config import UserError
from transformer_jax.configuration import suggestions

COLLECTION = "activations"
# The name in COLLECTION of the output of a module.
_OUTPUT = "output"

# Returns the activation in its place; `layer` is () int32, or None outside a stack of layers.
Replacement = Callable[[Any, jax.Array | None], Any]

_current: contextvars.ContextVar = contextvars.ContextVar("activations", default=None)
_layer: contextvars.ContextVar = contextvars.ContextVar("layer", default=None)


@dataclasses.dataclass
class _Request:
    """The names to read and to replace, and all names that the model has computed."""

    read: Sequence[str]
    replace: Mapping[str, Replacement]
    computed: set[str] = dataclasses.field(default_factory=set)

    def wants(self, name: str) -> bool:
        self.computed.add(name)
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in (*self.read, *self.replace))

    def apply(self, module: nn.Module, key: str, name: str, x):
        """Replaces an activation, then stores it in the module's collection."""
        self.computed.add(name)
        for pattern, replacement in self.replace.items():
            if fnmatch.fnmatchcase(name, pattern):
                x = replacement(x, _layer.get())
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.read):
            module.sow(COLLECTION, key, x)
        return x

    def check(self) -> None:
        """Raises UserError for a name that the model has not computed."""
        names = sorted(self.computed)
        for pattern in (*self.read, *self.replace):
            if not fnmatch.filter(names, pattern):
                raise UserError(
                    f"no activation {pattern!r}{suggestions.near(pattern, names)}; "
                    "layers.activations.names lists them"
                )


def capture(
    model: nn.Module,
    params: Any,
    names: Sequence[str],
    *inputs,
    replace: Mapping[str, Replacement] | None = None,
    method: str = "hidden",
    **options,
) -> dict[str, Any]:
    """Returns the named activations of `model` on `inputs`, as {name: activation}.

    A name may have wildcards: "decoder/layers/*". The activations of a stack of layers have a
    leading axis of layers. A module that is called several times has a tuple of activations.

    Args:
      model: a Linen module.
      params: its parameters.
      names: names, or patterns of names.
      *inputs: the arguments of the method, such as token ids (B, L).
      replace: replacements in force, as in `intervene`.
      method: the method of the model.
      **options: further arguments of the method.

    Raises UserError for a name that the method does not compute.
    """
    request = _Request(names, replace or {})
    with _use(request):
        _, collections = model.apply(
            {"params": params}, *inputs, **options, method=method, mutable=[COLLECTION]
        )
    request.check()
    activations = {}
    leaves = jax.tree_util.tree_leaves_with_path(
        collections.get(COLLECTION, {}), is_leaf=lambda x: isinstance(x, tuple)
    )
    for path, values in leaves:
        path = [key.key for key in path]
        name = "/".join(path[:-1] if path[-1] == _OUTPUT else path)
        activations[name] = values[0] if len(values) == 1 else values
    return activations


def intervene(
    model: nn.Module,
    params: Any,
    replace: Mapping[str, Replacement],
    *inputs,
    method: str = "hidden",
    **options,
) -> Any:
    """Returns the method's result with activations replaced.

    `replace` maps a name, or a pattern of names, to a function (activation, layer) -> activation.
    `layer` is the number of the layer, () int32 from 0, or None outside a stack of layers. In a
    stack it is an array of JAX: choose with jnp.where. Raises UserError for a name that the method
    does not compute.
    """
    request = _Request((), replace)
    with _use(request):
        result = model.apply({"params": params}, *inputs, **options, method=method)
    request.check()
    return result


def names(
    model: nn.Module, params: Any, *inputs, method: str = "hidden", **options
) -> dict[str, Any]:
    """Returns the shapes and dtypes of all activations of a method, as {name: shape}."""

    def all_activations(params, *inputs):
        return capture(model, params, ["*"], *inputs, method=method, **options)

    return jax.eval_shape(all_activations, params, *inputs)


def named(module: nn.Module, key: str, x: jax.Array) -> jax.Array:
    """Names an array within a module: its path and `key`. Returns the array in its place."""
    request = _current.get()
    return x if request is None else request.apply(module, key, _join(module, key), x)


def requested(module: nn.Module, key: str) -> bool:
    """Whether the array that `module` would name `key` is read or replaced."""
    request = _current.get()
    return request is not None and request.wants(_join(module, key))


def replaced() -> bool:
    """Whether any activation is replaced. Then a stack tells its layers' numbers by `at_layer`."""
    request = _current.get()
    return request is not None and bool(request.replace)


@contextlib.contextmanager
def at_layer(number: jax.Array | None):
    """In the context, replacements get this number as their `layer`."""
    token = _layer.set(number)
    try:
        yield
    finally:
        _layer.reset(token)


def _join(module: nn.Module, *keys: str) -> str:
    return "/".join((*module.path, *keys))


@contextlib.contextmanager
def _use(request: _Request):
    """In the context, the outputs of modules and the named arrays are read and replaced."""

    def intercept(call, args, kwargs, context):
        output = call(*args, **kwargs)
        if context.method_name != "__call__" or not context.module.path:
            return output
        return request.apply(context.module, _OUTPUT, _join(context.module), output)

    token = _current.set(request)
    try:
        with nn.intercept_methods(intercept):
            yield
    finally:
        _current.reset(token)
