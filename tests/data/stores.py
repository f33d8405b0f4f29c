"""Small token stores for the tests: building them, stopping a build, damaging files."""

import pathlib
import re
import subprocess
import sys
import textwrap

import numpy as np

from transformer_jax.data import store

ROOT = pathlib.Path(__file__).parents[2]


TOKENS = np.arange(150) * 7 % 97


OFFSETS = np.array([0, 5, 30, 100, 150])


def fill(writer, part):
    for start, stop in zip(OFFSETS, OFFSETS[1:]):
        writer.append(TOKENS[start:stop])
    writer.array("offsets", OFFSETS)
    return {"note": "größer"}


def build(cache, key="k", vocab_size=97, fill=fill, rebuild=False, parts=(0,)):
    """Returns a store. Part p is what fill(writer, p) writes; its metadata is that of part 0."""
    content = store.Content(lambda: parts, fill, lambda metadata: metadata[0], "pairs")
    return store.build(str(cache), "pairs", {"key": key}, vocab_size, content, rebuild=rebuild)


def refuse(*_):
    raise AssertionError("made twice")


def folder_of(name, cache, gcs):
    """Returns the only folder of the cache with this name."""
    if "://" not in cache:
        (folder,) = pathlib.Path(cache).glob(f"{name}-*")
    else:
        (folder,) = {
            "gs://bucket/" + re.match(f".*/{name}-[0-9a-f]*", file)[0]
            for file in gcs.objects
            if f"/{name}-" in file
        }
    return folder


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def start(cache, code):
    """Starts a process that runs `code`, with small shards, TOKENS and `cache`."""
    setup = f"""
        import os, sys, time
        import numpy as np
        from transformer_jax.data import store
        store._SHARD_BYTES, store._CHUNK_BYTES = 128, 32
        TOKENS, cache = np.array({TOKENS.tolist()}), {str(cache)!r}
        """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(setup) + textwrap.dedent(code)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def counting(done):
    """Returns a `fill` of part p with 70 tokens, from p on; `done` lists its parts."""

    def fill(writer, part):
        done.append(part)
        writer.append(TOKENS[:70] + part)
        writer.array("ends", np.array([part, 70], np.uint32))
        return {"part": part}

    return fill


def flip(index):
    return lambda content: (
        content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :]
        if index >= 0
        else flip(len(content) + index)(content)
    )


def change(path, file, how, gcs):
    """Replaces the content of a file by how(content); None deletes the file."""
    if isinstance(path, str):
        name = f"{path.removeprefix('gs://bucket/')}/{file}"
        gcs.put(name, how(gcs.objects[name]))
    elif (content := how((path / file).read_bytes())) is None:
        (path / file).unlink()
    else:
        (path / file).write_bytes(content)
