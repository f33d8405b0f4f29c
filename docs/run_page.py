"""Runs the commands of pages and writes what they print and draw: python docs/run_page.py PAGE ...

The bash blocks of a page such as docs/families/gpt.md run in a new folder, one after another, but
for those below a line <!-- not run -->. A text block after a bash block becomes its output, and
pictures that the page shows are copied from the folder to docs/images/families/.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
BLOCKS = re.compile(r"(<!-- not run -->\n+)?(```bash\n(.*?)```\n)(\n```text\n.*?```\n)?", re.DOTALL)
PICTURES = re.compile(r"\(\.\./images/families/([\w-]+\.png)\)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", type=pathlib.Path)
    for page in parser.parse_args().pages:
        print(page, file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            run_page(page, pathlib.Path(folder))


def run_page(page: pathlib.Path, folder: pathlib.Path) -> None:
    """Runs the commands of a page in a folder. Raises SystemExit for one that fails."""
    (folder / "configs").symlink_to(ROOT / "configs")
    paths = [str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
    env = os.environ | {"PYTHONPATH": str(ROOT), "PATH": os.pathsep.join(paths)}
    content = page.read_text()

    def run(match: re.Match) -> str:
        not_run, block, commands, output = match.groups()
        if not_run:
            return match[0]
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=folder,
            env=env,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            raise SystemExit(f"{page}: exit code {done.returncode}\n{commands}\n{done.stdout}")
        if output is None:
            return block
        printed = done.stdout.replace(f"{folder}/", "").replace(str(pathlib.Path.home()), "~")
        lines = "\n".join(line.rstrip() for line in printed.strip().splitlines())
        return f"{block}\n```text\n{lines}\n```\n"

    content = BLOCKS.sub(run, content)
    for name in set(PICTURES.findall(content)):
        shutil.copy(folder / name, ROOT / "docs" / "images" / "families" / name)
    page.write_text(content)


if __name__ == "__main__":
    main()
