"""Writes the address of the git repository to all places that need it.

python docs/address.py https://github.com/NAME/transformer_jax

`repo_url` in mkdocs.yml is the one place that holds it: the site links to it and to its files, and
setup.py reads it for the package's metadata. The notebooks can't read it, so this script writes it
to each of them: to the cell that installs the package, and as a badge that opens the notebook in
Colab, which only knows repositories on GitHub. An empty address removes both. Run it again after
adding a notebook.
"""

import argparse
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
COLAB = "https://colab.research.google.com"
BADGE = f"[![Open in Colab]({COLAB}/assets/colab-badge.svg)]"


def address(root: pathlib.Path = ROOT) -> str:
    """Returns the address that mkdocs.yml names; "" if it names none."""
    return re.search(r'^repo_url: "(.*)"$', (root / "mkdocs.yml").read_text(), re.M)[1]


def write(new: str, root: pathlib.Path = ROOT) -> None:
    """Writes the address to mkdocs.yml and to the notebooks."""
    site = root / "mkdocs.yml"
    text = re.sub(r'^repo_url: ".*"$', f'repo_url: "{new}"', site.read_text(), flags=re.M)
    edit = "edit/main/docs/" if new else ""
    site.write_text(re.sub(r'^edit_uri: ".*"$', f'edit_uri: "{edit}"', text, flags=re.M))
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text("utf-8"))
        _update(notebook["cells"], new, path.name)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _update(cells: list[dict], new: str, name: str) -> None:
    """Writes the address to the first two cells: the title, and the installation."""
    title, *lines = (line for line in cells[0]["source"] if not line.startswith(BADGE))
    cells[0]["source"] = [title, *_badge(new, name), *lines]
    cells[1]["source"] = [
        re.sub(r'^REPOSITORY = ".*"', f'REPOSITORY = "{new}"', line) for line in cells[1]["source"]
    ]


def _badge(new: str, name: str) -> list[str]:
    found = re.fullmatch(r"https://github\.com/([^/]+/[^/]+?)(\.git)?/?", new)
    if not found:
        return []
    return [f"{BADGE}({COLAB}/github/{found[1]}/blob/main/notebooks/{name})\n"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address", help='such as https://github.com/NAME/transformer_jax, or ""')
    write(parser.parse_args().address)
