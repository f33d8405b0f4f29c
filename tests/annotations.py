"""The arguments and results of functions are checked against their annotations.

beartype checks their types, and jaxtyping that equal letters in the shapes of arrays are equal
sizes. jaxtyping's import hook would do the same, but it also decorates nested functions, each time
their outer function runs: tracing a model then takes half as long again.
"""

import ast
import dataclasses
import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator

import jax
import numpy as np
from beartype import BeartypeConf, beartype
from jaxtyping import jaxtyped

PACKAGE = "transformer_jax"
MODULES = (
    "layers",
    "losses",
    "contracts.model",
    "families",
    "inference.beam_search",
    "inference.filling",
    "inference.generation",
    "inference.stream",
)
_DECORATOR = ast.parse(f"__import__({__name__!r}, fromlist=['checked']).checked", mode="eval").body

# An int is a float.
_checks = jaxtyped(typechecker=beartype(conf=BeartypeConf(is_pep484_tower=True)))
_PLAIN = (bool, int, float, str, type(None))


def checked(function):
    """Checks the first call with arguments of each kind, shape and dtype.

    A check reads nothing else of them, and takes about as long as a small function's tracing.
    """
    checks, seen = _checks(function), set()

    @functools.wraps(function)
    def call(*arguments, **options):
        leaves, structure = jax.tree.flatten((arguments, options), is_leaf=_is_iterator)
        kinds = (structure, *map(_kind, leaves))
        if kinds in seen:
            return function(*arguments, **options)
        for value in (*arguments, *options.values()):
            if type(value).__module__ == f"{PACKAGE}.contracts.model":  # an `Inputs`
                _check_fields(value)
        result = checks(*arguments, **options)
        seen.add(kinds)
        return result

    return call


def _check_fields(inputs) -> None:
    """Checks the fields of a model's `Inputs` against their annotations, and each other."""
    fields = {field.name: getattr(inputs, field.name) for field in dataclasses.fields(inputs)}
    _checks(type(inputs).__init__)(object.__new__(type(inputs)), **fields)


def _is_iterator(value) -> bool:
    return isinstance(value, Iterator)


def _kind(value):
    """Returns a value that is equal for equally annotated arguments: also a module's sizes."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (jax.Array, np.ndarray)):
        return value.shape, value.dtype
    fields = getattr(value, "__dict__", {}).values()
    return type(value), *(field for field in fields if isinstance(field, _PLAIN))


def install() -> None:
    """Checks the modules of the package that are imported from now on."""
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        package, _, module = name.partition(".")
        if package != PACKAGE or not any(f"{module}.".startswith(f"{each}.") for each in MODULES):
            return None
        # In the folder of a family, the model is checked, but not its tasks, as those in tasks/.
        if module.startswith("families.") and module.count(".") > 1:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Decorates the annotated functions of a module, and the methods of its classes."""

    def get_code(self, fullname):
        tree = ast.parse(self.get_data(self.path), self.path)
        for node in tree.body:
            for function in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(function, ast.FunctionDef) and _is_annotated(function):
                    decorator = ast.copy_location(_DECORATOR, function)
                    # The last one, so that jax.jit, nn.compact and others see a plain function.
                    function.decorator_list.append(decorator)
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


def _is_annotated(function: ast.FunctionDef) -> bool:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
    return function.returns is not None or any(one.annotation is not None for one in every)
