"""Hooks of MkDocs: the tables of configuration.md, and the pictures outside docs/."""

import pathlib
import re

from mkdocs.structure.files import File

from transformer_jax import config as configs
from transformer_jax.cli import key_help
from transformer_jax.configuration import classes

ROOT = pathlib.Path(__file__).parent.parent
KEYS = "<!-- keys -->"  # the line of configuration.md that the tables replace
# A picture of the repository: ](../launch/quickstart.png)
OUTSIDE = re.compile(r"\]\(\.\./([\w/.]+\.png)\)")


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
    """Returns a heading and a table of keys for each section, model, task and source."""
    models, tasks = classes.names("model"), classes.names("task")
    model, task = models[0], tasks[0]
    parts = [_table("Top level", (configs.INIT_FROM,), model, task)]
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
    for name in classes.names("source"):
        keys = [key for key in configs.schema(model, task, name) if key.startswith("source.")]
        parts.append(_table(f"Source `{name}`", keys, model, task, name))
    return "\n".join(parts)


def _table(title: str, keys, model: str, task: str, source: str = "") -> str:
    schema = configs.schema(model, task, source)
    lines = [f"### {title}", "", "| key | type | default | meaning |", "|---|---|---|---|"]
    for key in keys:
        kind, default = schema[key]
        value = f"`{key_help.as_flag(default)}`" if default != "" else "empty"
        meaning = _escaped(configs.meaning(key, model, task, source))
        cells = (f"`{key}`", _escaped(configs.describe(kind)), value, meaning)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    """Returns plain text as Markdown without markup."""
    return re.sub(r"([\\*_|<>\[\]])", r"\\\1", text)
