"""The chain of a run: digests of all that it has done, each of which depends on those before it.

With `config.checkpoint.keep_every`, a run writes chain.jsonl. It has an entry for its start, and
for each later start of a process with another config, package or machine: "start", with the
content of config.json. It has one for each checkpoint, with the tensors of the state, the metrics
of every update since the entry before, and the lines of metrics.jsonl; and one for an evaluation
that was made up for later. The digest of an entry covers the digest of its predecessor, so that the
last one, the head, stands for the whole history. `runs/verification.py` recomputes parts of it.
"""

import concurrent.futures
import hashlib
import json
import math
import os
import pathlib
import platform
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import transformer_jax
from transformer_jax.config import RunError, UserError
from transformer_jax.storage import buckets
from transformer_jax.storage.buckets import write_whole

FILE = "chain.jsonl"
# What metrics.jsonl has of the speed, which differs each time, and of the caller's own hooks.
_VOLATILE = ("seconds/", "hook/", "train/tokens_per_second", "train/mfu")
# Settings of JAX that decide how a program is rounded.
_SETTINGS = (
    "jax_default_matmul_precision",
    "jax_disable_most_optimizations",
    "jax_enable_x64",
    "jax_default_prng_impl",
)


def digest(content: Any) -> str:
    """Returns the SHA-256 of bytes, or of a value as JSON."""
    if not isinstance(content, bytes):
        content = json.dumps(content, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def sealed(entry: Mapping[str, Any], previous: str) -> dict[str, Any]:
    """Returns an entry with the digest of its predecessor and its own."""
    entry = {**entry, "previous": previous}
    return {**entry, "digest": digest(entry)}


_KEYS = {
    "start": {"step", "package", "machine", "record", "tokenizer", "digest"},
    "checkpoint": {"step", "after", "kept", "updates", "lines", "state", "digest"},
    "evaluation": {"step", "lines", "digest"},
}


def read(workdir: pathlib.Path | buckets.Path) -> list[dict[str, Any]]:
    """Returns the entries of a run's chain, empty if it has none.

    Raises UserError for a line that is no entry.
    """
    path = workdir / FILE
    entries = []
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else (), 1):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        kind = entry.get("kind") if isinstance(entry, dict) else None
        is_entry = kind in _KEYS and _KEYS[kind] <= entry.keys()
        if not is_entry or (number == 1 and kind != "start"):
            raise UserError(f"{path}:{number}: not an entry of a chain")
        entries.append(entry)
    return entries


def kept(entries: Iterable[Mapping[str, Any]]) -> list[int]:
    """Returns the steps of the checkpoints that a run keeps for good."""
    return [entry["step"] for entry in entries if entry.get("kept")]


def package() -> str:
    """Returns the digest of the sources of this package."""
    root = pathlib.Path(transformer_jax.__file__).parent
    files = sorted(root.rglob("*.py"))
    return digest([[str(file.relative_to(root)), digest(file.read_bytes())] for file in files])


def machine(mesh: jax.sharding.Mesh, together: bool = False) -> dict[str, Any]:
    """Returns what must be equal for equal bits: versions, processors, their number, and flags.

    `together` says whether the run trains in one program with others.
    """
    device = mesh.devices.flat[0]
    return {
        "jax": jax.__version__,
        "jaxlib": jax.lib.__version__,
        "numpy": np.__version__,
        "platform": device.client.platform_version,
        "settings": {name: str(jax.config.values.get(name)) for name in _SETTINGS},
        "device": device.device_kind,
        # XLA divides a sum among the threads, one per core, and so decides its rounding.
        "processor": _processor(),
        "cores": _cores() if device.platform == "cpu" else None,
        "mesh": {name: size for name, size in mesh.shape.items() if size > 1},
        "flags": os.environ.get("XLA_FLAGS", ""),
        "together": together,
    }


def _cores() -> int | None:
    # Not on all systems.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _processor() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    # The features, too, because processors of one name may differ in their vector instructions.
    wanted = ("vendor_id", "cpu family", "model\t", "flags")
    found = dict.fromkeys(line for line in lines if line.startswith(wanted))
    return digest([*found])[:16]


def tensors(state) -> dict[str, str]:
    """Returns {path: SHA-256} of the tensors of a TrainState, metrics apart."""
    tree = {"params": state.params, **state.rest()}
    leaves = jax.tree_util.tree_leaves_with_path(tree)

    def leaf_digest(item) -> tuple[str, str]:
        path, leaf = item
        array = np.asarray(leaf)
        content = json.dumps([str(array.dtype), array.shape]).encode() + array.tobytes()
        return jax.tree_util.keystr(path, simple=True, separator="/"), digest(content)

    # Threads, because hashlib releases Python's lock while it hashes.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return dict(pool.map(leaf_digest, leaves))


def lines_of(path: pathlib.Path | buckets.Path) -> list[dict[str, float]]:
    """Returns the lines of metrics.jsonl without the values that differ each time.

    A line that can't be read is {"unreadable": its text}, unless it is the last one, which a run
    that was killed may have left incomplete.
    """
    texts = path.read_text().splitlines() if path.exists() else []
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            values = dict(json.loads(text))
        except (ValueError, TypeError):
            if number < len(texts):
                lines.append({"unreadable": text})
            continue
        line = {name: value for name, value in values.items() if not name.startswith(_VOLATILE)}
        if line.keys() != {"step"}:  # else it had nothing but such values
            lines.append(line)
    return lines


def tokenizer(workdir: pathlib.Path | buckets.Path) -> dict[str, str]:
    """Returns {file: SHA-256} of the tokenizer of a run."""
    folder = workdir / "tokenizer"
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return {file.name: digest(file.read_bytes()) for file in files if file.is_file()}


class Chain:
    """Writes the chain of a run from the step at which a process has started or resumed it."""

    def __init__(self, workdir: pathlib.Path | buckets.Path, start: int, mesh, metrics):
        """`metrics` is the path of metrics.jsonl, which has no lines after `start`."""
        self._path = workdir / FILE
        self._metrics = metrics
        # Steps after the checkpoint that the run resumes from are done again.
        self._entries = [entry for entry in read(workdir) if entry["step"] <= start]
        self._updates: list[Any] = []  # metrics on the devices, of the updates since the last entry
        self._step = start
        content = {
            "kind": "start",
            "version": transformer_jax.__version__,
            "package": package(),
            "machine": machine(mesh, (workdir / "together.json").exists()),
            "record": json.loads((workdir / "config.json").read_text()),
            "tokenizer": tokenizer(workdir),
        }
        starts = [entry for entry in self._entries if entry["kind"] == "start"]
        follows = bool(self._entries) and self._entries[-1]["step"] == start
        if not (follows and content.items() <= starts[-1].items()):
            self._add(content | {"step": start})

    def update(self, metrics) -> None:
        """Records the metrics of an update, which are sums since the last progress line.

        They are copied on the devices, because the next update reuses their memory, and fetched
        only at the next checkpoint, because a fetch waits for all updates in flight.
        """
        self._updates.append(_copied(metrics))

    def checkpoint(self, state, *, kept: bool) -> None:
        """Writes the entry of the checkpoint of a state, and whether it is kept for good."""
        updates = [_update_values(sums) for sums in jax.device_get(self._updates)]
        self._updates = []
        entry = {"kind": "checkpoint", "step": int(state.step), "after": self._step, "kept": kept}
        entry |= {"updates": updates, "lines": self._new_lines()}
        self._step = int(state.step)
        self._add(entry | {"state": tensors(state)})

    def evaluation(self) -> None:
        """Writes an entry with the lines of an evaluation of the step that the run resumes from."""
        self._add({"kind": "evaluation", "step": self._step, "lines": self._new_lines()})

    @property
    def head(self) -> str:
        """The digest of the last entry."""
        return self._entries[-1]["digest"]

    def _new_lines(self) -> list[str]:
        """Returns the digests of the lines of metrics.jsonl that no entry has yet."""
        count = sum(len(entry.get("lines", ())) for entry in self._entries)
        return [digest(line) for line in lines_of(self._metrics)[count:]]

    def _add(self, entry: dict[str, Any]) -> None:
        previous = self._entries[-1]["digest"] if self._entries else ""
        self._entries.append(sealed(entry, previous))
        text = "".join(f"{json.dumps(each)}\n" for each in self._entries)
        with buckets.writing(self._path, RunError):
            write_whole(self._path, text)


@jax.jit
def _copied(metrics):
    return jax.tree.map(jnp.copy, metrics)


def _update_values(sums: Mapping[str, Iterable]) -> list:
    """Returns [the digest of the metrics of an update, the sum and the count of its first one]."""
    bits = {
        name: [np.asarray(value).tobytes().hex() for value in pair] for name, pair in sums.items()
    }
    name = "loss" if "loss" in sums else min(sums)
    total, count = (float(value) for value in sums[name])
    return [digest(bits)[:16], total if math.isfinite(total) else None, count]
