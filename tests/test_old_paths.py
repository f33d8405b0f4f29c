"""Modules that have moved can still be imported under their old names, with a warning."""

import importlib
import pathlib
import sys

import pytest

from transformer_jax import config as configs
from transformer_jax import old_paths

EARLIER = pathlib.Path(__file__).parent / "fixtures/earlier"


@pytest.mark.parametrize("old", old_paths.MOVED)
def test_an_old_name_has_the_content_of_the_new_one(old, monkeypatch):
    name = f"transformer_jax.{old}"
    for loaded in [each for each in sys.modules if f"{each}.".startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    with pytest.warns(DeprecationWarning, match=f"^transformer_jax.{old} is now transformer_jax."):
        module = importlib.import_module(name)
    new = importlib.import_module(f"transformer_jax.{old_paths.MOVED[old]}")
    old_modules = old_paths._Module  # of other old names, which importing them has put there
    public = [
        each
        for each, value in vars(new).items()
        if not (each.startswith("_") or isinstance(value, old_modules))
    ]
    assert all(getattr(module, each) is getattr(new, each) for each in public)


@pytest.mark.parametrize(
    "model, task, source",
    [
        ("decaying_average.py", "causal_lm", ""),
        ("gpt", "backward_lm.py", ""),
        ("gpt", "next_residue.py", "fasta.py"),
    ],
)
def test_classes_written_for_earlier_modules_are_used_unmodified(model, task, source, recwarn):
    """They are the examples of docs/extending.md from before the modules moved."""
    names = dict(model=model, task=task, source=source)
    files = {kind: str(EARLIER / name) for kind, name in names.items() if name.endswith(".py")}
    sections = {kind: dict(name=files.get(kind, name)) for kind, name in names.items() if name}
    config = configs.experiment(**sections)
    configs.validate(config)
    assert configs.build_model(config)
    for kind in sections:
        assert configs.named_class(kind, config[kind].name)
    moved = [str(each.message) for each in recwarn if each.category is DeprecationWarning]
    assert all(" is now transformer_jax." in line for line in moved)


@pytest.mark.parametrize("old, new", old_paths.RENAMED.items())
def test_a_renamed_class_or_function_is_in_the_module_that_it_was_in(old, new):
    modules = {
        "Beginning": "configuration.beginnings",
        "LSTM": "models.lstm",
        "Marked": "data.sources.documents",
        "Marks": "finetuning.marks",
        **dict.fromkeys(("limit", "remove", "Entry"), "storage.least_used"),
        "PublishedBPE": "data.tokenizers.published_bpe",
        "beginnings": "configuration.beginnings",
        "canonical_beginnings": "configuration.beginnings",
    }
    name = f"transformer_jax.{modules.get(old, 'models.model' if old[0].isupper() else 'metrics')}"
    sys.modules.pop(name, None)
    with pytest.warns(DeprecationWarning):
        renamed = getattr(importlib.import_module(name), old)
    assert renamed is getattr(importlib.import_module(renamed.__module__), new)


def test_a_module_that_was_divided_has_the_content_of_its_parts(monkeypatch):
    monkeypatch.delitem(sys.modules, "transformer_jax.workdir", raising=False)
    with pytest.warns(DeprecationWarning, match=" is now transformer_jax.runs.open and "):
        workdir = importlib.import_module("transformer_jax.workdir")
    from transformer_jax.runs import open as opening
    from transformer_jax.runs import spec, train

    assert (workdir.load, workdir.mean) == (opening.load, opening.mean)
    assert (workdir.read, workdir.resolve, workdir.make_task) == (
        spec.read,
        spec.resolve,
        spec.make_task,
    )
    assert workdir.train is train.train


def test_a_module_that_hides_a_function_can_be_called():
    from transformer_jax import pictures

    module = importlib.import_module("transformer_jax.pictures.bars")
    assert pictures.bars is module or callable(pictures.bars)
    assert callable(module) and module([("a", 0.5)], "cosine", "title").axes


def test_an_unknown_name_is_not_found():
    with pytest.raises(ModuleNotFoundError, match="transformer_jax.training.scheduler"):
        importlib.import_module("transformer_jax.training.scheduler")
