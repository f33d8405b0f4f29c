"""Hooks of MkDocs: the tables of configuration.md, and the pictures outside docs/.

MkDocs with its theme is all that they need: `pip install mkdocs-material`. The tables are read from
the classes of transformer_jax in this repository, whose modules import JAX, Flax and other packages
that need not be installed (`_standing_in`).
"""

import contextlib
import dataclasses
import importlib.abc
import importlib.machinery
import pathlib
import re
import sys
import types

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parent.parent
KEYS = "<!-- keys -->"  # the line of configuration.md that the tables replace
# A picture of the repository: ](../benchmarks/results/compare_cpu.png)
OUTSIDE = re.compile(r"\]\(\.\./(benchmarks/[\w/.]+\.png)\)")


def on_files(files, config):
    """Adds the pictures outside docs/ that the pages show."""
    pages = [file for file in files if file.is_documentation_page()]
    shown = {path for page in pages for path in OUTSIDE.findall(page.content_string)}
    for path in sorted(shown):
        content = (ROOT / path).read_bytes()
        files.append(File.generated(config, f"images/{path}", content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    """Fills in the tables of keys, and points to the pictures that `on_files` adds."""
    markdown = OUTSIDE.sub(r"](images/\1)", markdown)
    if page.file.src_uri == "configuration.md":
        markdown = markdown.replace(KEYS, key_tables())
    return markdown


def key_tables() -> str:
    """Returns `tables()`, without the packages that transformer_jax depends on."""
    with _standing_in():
        return tables()


def tables() -> str:
    """Returns a heading and a table of keys for each section, model, task and source."""
    from transformer_jax import config as configs

    models, tasks = configs.class_names("model"), configs.class_names("task")
    model, task = models[0], tasks[0]
    parts = [_table("Top level", tuple(configs.WITHOUT_SECTION), model, task)]
    schema = configs.schema(model, task)
    for section in configs.SECTIONS:
        keys = [key for key in schema if key.startswith(f"{section}.")]
        parts.append(_table(f"`{section}`", keys, model, task))
    for name in models:
        keys = [key for key in configs.schema(name, task) if key.startswith("model.")]
        parts.append(_table(f"Model `{name}`", keys, name, task))
    for name in tasks:
        keys = [key for key in configs.schema(model, name) if key.startswith("task.")]
        parts.append(_table(f"Task `{name}`", keys, model, name))
    parts.append(_table("`source`", ("source.name",), model, task))
    for name in configs.class_names("source"):
        keys = [key for key in configs.schema(model, task, name) if key.startswith("source.")]
        parts.append(_table(f"Source `{name}`", keys, model, task, name))
    return "\n".join(parts)


def _table(title: str, keys, model: str, task: str, source: str = "") -> str:
    from transformer_jax import cli
    from transformer_jax import config as configs

    schema = configs.schema(model, task, source)
    lines = [f"### {title}", "", "| key | type | default | meaning |", "|---|---|---|---|"]
    for key in keys:
        kind, default = schema[key]
        value = f"`{cli.as_flag(default)}`" if default != "" else "empty"
        meaning = _escaped(configs.meaning(key, model, task, source))
        cells = (f"`{key}`", _escaped(configs.describe(kind)), value, meaning)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    """Returns plain text as Markdown without markup."""
    return re.sub(r"([\\*_|<>\[\]])", r"\\\1", text)


@contextlib.contextmanager
def _standing_in():
    """Within it, transformer_jax is that of this repository, and a stand-in is imported for each
    package outside the standard library.

    The classes of models and tasks use such packages only when a model or a task is made, so that
    the names may mean nothing while their fields are read. Installed packages are replaced as well,
    because half of them real would be another program on every machine. What MkDocs has imported
    stays. At the end all modules are as they were.
    """
    before, path = dict(sys.modules), list(sys.path)
    for name in before:
        if name.partition(".")[0] == "transformer_jax":
            del sys.modules[name]
    finder = _StandIns()
    sys.meta_path.insert(0, finder)
    sys.path.insert(0, str(ROOT))
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.path[:] = path
        for name in [*sys.modules]:
            if name not in before:
                del sys.modules[name]
        sys.modules.update(before)


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in {"transformer_jax", *sys.stdlib_module_names}:
            return None  # the next finder imports it
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


class _Module(types.ModuleType):
    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()


class _Nothing:
    """Any name of a stand-in: it can be called, subscripted, derived from and used as a type."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args, **kwargs):
        return self

    def __getitem__(self, key):
        return self

    def __iter__(self):  # without it, __getitem__ would make it endless
        return iter(())

    def __mro_entries__(self, bases) -> tuple[type]:
        return (_Base,)

    def __or__(self, other):
        return self

    __ror__ = __or__


class _Base:
    """The base of classes that derive from a stand-in.

    They become dataclasses, as subclasses of `flax.linen.Module` do.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(cls)
