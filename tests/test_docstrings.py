"""The examples in docstrings of the Python reference, run as a reader would run them, in order."""

import doctest
import importlib
import pathlib
import re

import jax.numpy as jnp
import pytest

import transformer_jax
from tests.conftest import build_bert, build_config
from transformer_jax import config

ROOT = pathlib.Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reference.md").read_text()
# What an example may use without importing it.
NAMES = dict(transformer_jax=transformer_jax, config=config, jnp=jnp, pathlib=pathlib)
# Examples that leave a folder which others read come first.
FIRST = ("runs.train.train", "convert.write")


def documented(page: str) -> dict:
    """Returns {name without the package: object} of what the page shows, members included."""
    found = {}
    for name, options in re.findall(r"^::: transformer_jax\.([\w.]+)\n((?: .*\n)*)", page, re.M):
        parts = name.split(".")
        for size in range(len(parts), 0, -1):
            try:
                value = importlib.import_module(".".join(["transformer_jax", *parts[:size]]))
                break
            except ModuleNotFoundError:
                continue
        for part in parts[size:]:
            value = getattr(value, part)
        found[name] = value
        for member in re.findall(r"[-\[,] ?(\w+)", options.partition("members:")[2]):
            found[f"{name}.{member}"] = getattr(value, member, None)
    return found


DOCUMENTED = documented(PAGE)
EXAMPLES = {
    name: test
    for name, value in DOCUMENTED.items()
    if (doc := getattr(value, "__doc__", None)) and ">>>" in doc
    for test in [doctest.DocTestParser().get_doctest(doc, {}, name, name, 0)]
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder with the runs that the examples open."""
    folder = tmp_path_factory.mktemp("examples")
    short = dict(train__num_steps=2, train__eval_every=2, checkpoint__every=2)
    for name, build, keys in (
        ("bert", build_bert, {}),
        ("translation", build_config, dict(decode__beam=2)),
    ):
        settings = build(folder / f"text_{name}", **short, **keys)
        transformer_jax.train(settings, folder / "runs" / name)
    chat = {"data.cache": str(folder / "cache"), "data.corpus_size": 200, "train.eval_every": 2}
    settings = config.tiny(config.config_file("chat/quickstart"))
    transformer_jax.train(settings, folder / "runs" / "chat", overrides=chat)
    return folder


@pytest.mark.parametrize("name", sorted(EXAMPLES, key=lambda name: (name not in FIRST, name)))
def test_the_example_gives_what_it_shows(name, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    test = EXAMPLES[name]
    test.globs = dict(NAMES)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    written = []
    runner.run(test, out=written.append)
    assert not runner.failures, "".join(written)


def test_all_that_the_package_exports_has_an_example_and_stands_on_the_page():
    shown = [value for value in DOCUMENTED.values() if value is not None]
    assert len(shown) == len(DOCUMENTED), [name for name, x in DOCUMENTED.items() if x is None]
    # Not by `getattr`, which gives the program of the same name once that has been imported.
    for name, (module, attribute) in transformer_jax._EXPORTS.items():
        value = getattr(importlib.import_module(f"transformer_jax.{module}"), attribute)
        if name != "run":  # an older name of the inner part of `train`
            assert value in shown and ">>>" in value.__doc__, name
    functions = [name for name in DOCUMENTED if re.search(r"(Use|config)\.[a-z_]+$", name)]
    assert len(functions) > 20 and not [name for name in functions if name not in EXAMPLES]
