"""The site: pages of families and tutorials are complete, pictures are current, all pages load."""

import functools
import http.server
import importlib.util
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import threading
import warnings

import pytest
from PIL import Image

from transformer_jax.pictures.figure import drawing_version

ROOT = pathlib.Path(__file__).parent.parent
DOCS = ROOT / "docs"
FAMILIES = sorted((DOCS / "families").glob("*.md"))
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
HEADINGS = ["Train it", "Use it", "Look at it", "More", "Python reference"]
SAMPLE = ("bert", "gpt", "wav2vec2")  # of the diagrams, in every suite

shown = re.compile(r"!\[([^\]]+)\]\(([^)]+\.(?:png|svg|gif))\)")
each_family = pytest.mark.parametrize("page", FAMILIES, ids=lambda page: page.stem)


@functools.cache
def diagrams() -> dict:
    return runpy.run_path(str(DOCS / "diagrams.py"))


def test_every_family_of_the_package_has_a_page():
    modules = {
        path.stem
        for path in (ROOT / "transformer_jax" / "families").iterdir()
        if not path.name.startswith("_")
    }
    documented = {
        name
        for page in FAMILIES
        for name in re.findall(r"^::: transformer_jax\.families\.(\w+)", page.read_text(), re.M)
    }
    assert not modules - documented


@each_family
def test_a_page_of_a_family_has_all_parts(page):
    text = page.read_text()
    assert re.findall(r"^## (.+)", text, re.M) == HEADINGS
    for row in ("paper", "published", "measured here"):
        assert re.search(rf"^\| {row}s? \| .+ \|$", text, re.M), row
    pictures = [path for _, path in shown.findall(text)]
    assert pictures[:2] == [f"../images/families/{page.stem}.{kind}" for kind in ("svg", "png")]
    outputs = re.findall(r"^```text\n(.*?)^```", text, re.M | re.DOTALL)
    assert len(outputs) >= 2 and all(output.strip() for output in outputs)
    assert re.search(r"`notebooks/\w+\.ipynb`", text)


@pytest.mark.parametrize("page", [*FAMILIES, *TUTORIALS], ids=lambda page: page.stem)
def test_what_a_page_shows_exists(page):
    text = page.read_text()
    for _, path in shown.findall(text):
        assert (page.parent / path).is_file(), path
    for notebook in re.findall(r"`(notebooks/\w+\.ipynb)`", text):
        assert (ROOT / notebook).is_file(), notebook
    assert "/tmp/" not in text and "Traceback" not in text


@pytest.mark.sample(*SAMPLE)
@each_family
def test_the_diagram_is_that_of_the_model(page):
    drawn = diagrams()["diagram"](page.stem)
    assert drawn == (DOCS / "images" / "families" / f"{page.stem}.svg").read_text()


def test_layers_that_are_alike_are_drawn_once():
    model = diagrams()["modules"]("configs/gpt/gpt2.py:124m")
    assert model.size == 124_439_808
    (decoder,) = (part for part in model.parts if part.name == "decoder")
    (layers,) = decoder.parts
    assert (layers.repeats, layers.shape) == (12, (2, 1024, 768))
    assert sum(part.size for part in layers.parts) == layers.size == decoder.size


def version_of(picture: pathlib.Path) -> tuple[str, str] | None:
    """Returns the function that drew a picture, and its version; None if the file names none."""
    with Image.open(picture) as image:
        text = image.info.get("Software") or image.info.get("comment", b"").decode()
    package, _, version = text.partition(" ")
    return tuple(version.split()) if package == "transformer_jax" else None


def test_the_pictures_are_drawn_by_the_present_program():
    """Those of results can be drawn again by a command, and others only with their runs."""
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    pictures = {
        (page.parent / path).resolve()
        for page in pages
        for _, path in shown.findall(page.read_text())
        if not path.endswith(".svg")
    }
    assert len(pictures) > 20
    versions = {path.relative_to(ROOT).as_posix(): version_of(path) for path in sorted(pictures)}
    assert None not in versions.values()
    stale = [path for path, (name, version) in versions.items() if drawing_version(name) != version]
    redrawn = runpy.run_path(str(ROOT / "benchmarks" / "redraw.py"))["PICTURES"]
    assert not {f"benchmarks/results/{name}.png" for name in redrawn} & {*stale}, (
        "run python benchmarks/redraw.py"
    )
    if stale:
        warnings.warn(f"drawn by an earlier program: {', '.join(stale)}", stacklevel=1)


def has_browser() -> bool:
    names = ("mkdocs", "mkdocstrings_handlers", "playwright")
    return bool(shutil.which("chromium")) and all(map(importlib.util.find_spec, names))


@pytest.mark.full
@pytest.mark.skipif(not has_browser(), reason="needs the extra docs, playwright and chromium")
def test_every_page_loads_on_a_telephone(tmp_path):
    """No broken link, no error on the console, and nothing wider than 360 pixels."""
    from playwright.sync_api import sync_playwright

    site = tmp_path / "site"
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={site}"]
    done = subprocess.run(command, check=False, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    faults = []
    with sync_playwright() as playwright:
        quiet = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=quiet)
        page = browser.new_page(viewport={"width": 360, "height": 740})
        page.on("pageerror", lambda error: faults.append((page.url, str(error))))
        page.on(
            "console",
            lambda said: faults.append((page.url, said.text)) if said.type == "error" else None,
        )
        page.on(
            "response",
            lambda got: faults.append((page.url, got.url)) if got.status >= 400 else None,
        )
        for index in sorted(site.rglob("index.html")):
            path = index.parent.relative_to(site).as_posix()
            page.goto(f"http://127.0.0.1:{server.server_port}/{path}/")
            width = page.evaluate("document.documentElement.scrollWidth")
            faults += [(path, f"{width} pixels wide")] if width > 360 else []
        browser.close()
    server.shutdown()
    assert not faults
