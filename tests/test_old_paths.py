"""Modules that have moved can still be imported under their old names, with a warning."""

import importlib
import sys

import pytest

from transformer_jax import old_paths


@pytest.mark.parametrize("old", old_paths.MOVED)
def test_an_old_name_has_the_content_of_the_new_one(old, monkeypatch):
    name = f"transformer_jax.{old}"
    for loaded in [each for each in sys.modules if f"{each}.".startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    with pytest.warns(DeprecationWarning, match=f"^transformer_jax.{old} is now transformer_jax."):
        module = importlib.import_module(name)
    new = importlib.import_module(f"transformer_jax.{old_paths.MOVED[old]}")
    public = [each for each in vars(new) if not each.startswith("_")]
    assert all(getattr(module, each) is getattr(new, each) for each in public)


def test_an_unknown_name_is_not_found():
    with pytest.raises(ModuleNotFoundError, match="transformer_jax.training.scheduler"):
        importlib.import_module("transformer_jax.training.scheduler")
