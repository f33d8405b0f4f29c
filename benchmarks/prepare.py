"""Measures `prepare` on synthetic sentence pairs: pairs a second, memory, equal stores.

python benchmarks/prepare.py --data=DIR [--json=FILE] [--case=alone ...] [--tiny]

DIR takes 5 GB: the script writes 5 million pairs of 25 words there, and the stores. `alone` comes
first: the store of one process, with which the others are compared byte by byte. `killed` kills a
process three times at random moments. `processes` and `beam` share the parts between two processes,
or run them as a pipeline of Apache Beam's direct runner. `speedup` compares one process on one core
with two on two, with a trained tokenizer.
"""

import dataclasses
import importlib.util
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
from harness import main

ROOT = pathlib.Path(__file__).parents[1]
_WORDS = 60_000  # of each language
_CONFIG = """
from transformer_jax.config import experiment


def get_config():
    return experiment(
        model=dict(name="encoder_decoder", vocab_size=32_000),
        task=dict(name="translation", source_length=256, target_length=256),
        data=dict(train_source={source!r}, train_target={target!r}),
    )
"""


@dataclasses.dataclass(frozen=True)
class Work:
    """A folder with `count` pairs, a config, and the stores that are built of them."""

    folder: pathlib.Path
    count: int

    def run(self, name: str, start: list[str] = (), more: list[str] = (), kill_after=None):
        """Prepares the pairs in the cache `name`. Returns (seconds, peak memory in GB).

        `start` stands before the command. The process is killed after `kill_after` seconds.
        """
        program = [sys.executable, "-m", "transformer_jax.prepare"]
        flags = [f"--config={self.folder}/config.py", f"--config.data.cache={self.folder / name}"]
        began = time.perf_counter()
        process = subprocess.Popen(
            [*start, *program, *flags, *more],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )
        if kill_after:
            time.sleep(kill_after)
            os.kill(process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(process.pid, 0)
        if bool(status) != bool(kill_after):
            raise SystemExit(f"prepare ended with status {status}, killed after {kill_after} s")
        # The largest of the process and of all that it has waited for.
        return time.perf_counter() - began, usage.ru_maxrss * 1024 / 1e9

    def new(self, name: str, trained: bool = False) -> str:
        """Returns the name of an empty cache; `trained`: with the tokenizer of `alone`."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / name).mkdir()
        if trained:
            for tokenizer in (self.folder / "alone").glob("tokenizer-*"):
                shutil.copytree(tokenizer, self.folder / name / tokenizer.name)
        return name

    def equals_alone(self, name: str) -> bool:
        """Whether the stores of two caches hold the same files; deletes the other one."""
        stores = ("tokenizer-*/**/*", "pairs-*/**/*")
        files = [
            {
                path.relative_to(cache): path
                for pattern in stores
                for path in cache.glob(pattern)
                if path.is_file()
            }
            for cache in (self.folder / "alone", self.folder / name)
        ]
        equal = files[0].keys() == files[1].keys() and all(
            path.read_bytes() == files[1][file].read_bytes() for file, path in files[0].items()
        )
        shutil.rmtree(self.folder / name)
        return equal


def work(tiny: bool, data: str | None) -> Work:
    """Returns the folder of the pairs, after writing them the first time."""
    if data is None:
        raise SystemExit("--data=DIR is missing: a folder for the pairs and the stores")
    count = 20_000 if tiny else 5_000_000
    folder = pathlib.Path(data).absolute() / f"{count}"
    if not (folder / "config.py").exists():
        folder.mkdir(parents=True, exist_ok=True)
        source, target = folder / "train.en", folder / "train.de"
        for seed, file in enumerate((source, target)):
            write_sentences(file, count, seed)
        config = _CONFIG.format(source=str(source), target=str(target))
        (folder / "config.py").write_text(config)
    return Work(folder, count)


def write_sentences(file: pathlib.Path, count: int, seed: int) -> None:
    """Writes sentences of 25 words on average, with the frequencies of Zipf's law."""
    draw = np.random.default_rng(seed)
    letters = np.array([*"etaoinshrdlucmfwypvbgk"])
    words = ["".join(draw.choice(letters, size)) for size in draw.integers(2, 11, _WORDS)]
    words = np.array(words, object)
    frequencies = np.cumsum(1 / (np.arange(_WORDS) + 2.7))
    frequencies /= frequencies[-1]
    with open(file, "w") as out:
        for start in range(0, count, 50_000):
            lengths = np.maximum(draw.poisson(25, min(50_000, count - start)), 1)
            numbers = np.searchsorted(frequencies, draw.random(lengths.sum()))
            sentences = np.split(words[np.minimum(numbers, _WORDS - 1)], np.cumsum(lengths)[:-1])
            out.writelines(f"{' '.join(sentence)}\n" for sentence in sentences)


def row(pairs: Work, case: str, seconds: float, peak: float, **more) -> dict:
    case = f"{case}, {pairs.count:,} pairs"
    rate = round(pairs.count / seconds)
    return {"case": case, "ours": rate, "unit": "pairs/s", "peak_gb": round(peak, 2), **more}


def alone(tiny: bool, data: str | None):
    pairs = work(tiny, data)
    seconds, peak = pairs.run(pairs.new("alone"))
    (pairs.folder / "alone.json").write_text(json.dumps(seconds))
    yield row(pairs, "one process, tokenizer trained", seconds, peak)


def killed(tiny: bool, data: str | None):
    pairs = work(tiny, data)
    seconds = json.loads((pairs.folder / "alone.json").read_text())
    draw, cache = random.Random(0), pairs.new("killed")
    runs = [pairs.run(cache, kill_after=draw.uniform(0.1, 0.3) * seconds) for _ in range(3)]
    runs.append(pairs.run(cache))
    spent = sum(seconds for seconds, _ in runs)
    peak = max(peak for _, peak in runs)
    yield row(pairs, "killed three times", spent, peak, equal=pairs.equals_alone(cache))


def processes(tiny: bool, data: str | None):
    pairs = work(tiny, data)
    cache = pairs.new("processes")
    spent = pairs.run(cache, ["launch/local_multihost.sh", "2"])
    yield row(pairs, "two processes", *spent, equal=pairs.equals_alone(cache))


def beam(tiny: bool, data: str | None):
    if importlib.util.find_spec("apache_beam") is None:
        print("beam: pip install -e '.[beam]'")
        return
    pairs = work(tiny, data)
    cache = pairs.new("beam")
    spent = pairs.run(cache, more=["--beam_runner=DirectRunner"])
    yield row(pairs, "Apache Beam's direct runner", *spent, equal=pairs.equals_alone(cache))


def speedup(tiny: bool, data: str | None):
    pairs = work(tiny, data)
    first, second = sorted(os.sched_getaffinity(0))[:2]
    one = pairs.run(pairs.new("one", trained=True), ["taskset", "-c", str(first)])
    both = ["taskset", "-c", f"{first},{second}", "launch/local_multihost.sh", "2"]
    two = pairs.run(pairs.new("two", trained=True), both)
    ratio = round(one[0] / two[0], 2)
    yield row(pairs, "one process on one core", *one, equal=pairs.equals_alone("one"))
    equal = pairs.equals_alone("two")
    yield row(pairs, "two processes on two cores", *two, equal=equal, ratio_to_one=ratio)


if __name__ == "__main__":
    cases = {
        "alone": alone,
        "killed": killed,
        "processes": processes,
        "beam": beam,
        "speedup": speedup,
    }
    main(
        __doc__,
        cases,
        ("sentencepiece", "tensorstore", "numpy"),
        given=("data", "folder for the pairs and the stores, 5 GB"),
    )
