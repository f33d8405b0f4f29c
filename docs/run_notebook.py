"""Executes notebooks, and stores their outputs and minutes: python docs/run_notebook.py FILE ...

Each runs in a new folder, in order, with this checkout of the package. If a cell raises, the file
stays as it was. The line of the first cell that begins with "Minutes" gets the time that it took,
on the cores that this process may use; nothing else should run beside it.
"""

import argparse
import base64
import io
import os
import pathlib
import re
import sys
import tempfile
import time

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = pathlib.Path(__file__).parent.parent
MINUTES = re.compile(r"^Minutes.*?\.(?= |$)", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebooks", nargs="+", type=pathlib.Path)
    for path in parser.parse_args().notebooks:
        notebook = nbformat.read(path, as_version=4)
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            execute(notebook, folder)
        minutes = max(round((time.monotonic() - started) / 60), 1)
        cores = len(os.sched_getaffinity(0))
        line = f"Minutes: {minutes} on {cores} CPU cores, measured."
        first = notebook.cells[0]
        first.source = MINUTES.sub(line, first.source)
        nbformat.write(notebook, path)
        print(f"{path}: {minutes} minutes", file=sys.stderr, flush=True)


def execute(notebook: nbformat.NotebookNode, folder: str) -> None:
    """Runs the cells in a folder, which is also their home. Raises if a cell raises."""
    # Compiled programs are kept in the home, so the minutes are those of a first run.
    env = os.environ | {"PYTHONPATH": str(ROOT), "HOME": folder}
    resources = {"metadata": {"path": folder}}
    NotebookClient(
        notebook, timeout=None, kernel_name="python3", resources=resources, coalesce_streams=True
    ).execute(env=env)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day
        for output in cell.get("outputs", []):
            if "text/plain" in output.get("data", {}):
                output.data["text/plain"] = without_folder(output.data["text/plain"], folder)
                if "image/png" in output.data:
                    output.data["image/png"] = smaller(output.data["image/png"])
            elif "text" in output:
                output.text = without_folder(output.text, folder)


def without_folder(text: str, folder: str) -> str:
    return text.replace(f"{folder}/.cache", "~/.cache").replace(f"{folder}/", "")


def smaller(picture: str) -> str:
    """Returns a picture (PNG in base64) with a palette of 256 colors, a third of its size."""
    content = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        colors = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        colors.save(content, "PNG", optimize=True)
    return base64.b64encode(content.getvalue()).decode()


if __name__ == "__main__":
    main()
