"""Shared by all tests: 8 virtual CPU devices, the compilation cache, and tiny configs."""

import collections
import gc
import itertools
import os
import signal
import sys
import threading
import time
import types
from importlib import metadata

os.environ["JAX_PLATFORMS"] = os.environ.get("TEST_PLATFORM", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", os.path.expanduser("~/.cache/transformer_jax/compiled")
)
# Without the line numbers of Python in the programs, a test of a family takes a twentieth less:
# 10.4 instead of 11.0 s, the mean of three runs in turns (2026-11-27).
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# On busy cores, a collective of 8 devices may take longer than the default limit of 40 s.
flags = ["--xla_cpu_collective_call_terminate_timeout_seconds=300"]
# Flags that change the compiled code. A program is compiled as one module, which takes a sixth less
# than its parts. Without fusion emitters a training step on 8 devices compiles in 2.0 instead of
# 3.7 s. Later releases of jaxlib do not know that flag, and no other has its effect: a step that
# took 0.8 s of CPU time with it and 2.3 s without takes 1.9 s with jaxlib 0.12.0.1, as it does with
# xla_cpu_opt_preset=FAST_COMPILE or xla_cpu_use_new_xtile_lowering.
UNOPTIMIZED = ["--xla_cpu_parallel_codegen_split_count=1"]
if metadata.version("jaxlib").startswith("0.10."):
    UNOPTIMIZED.append("--xla_cpu_use_fusion_emitters=false")
# Most of the suite's time is compilation, so most optimisations are off. With TEST_OPTIMIZED=1,
# programs are compiled as users compile them (tests/faults, tests/as_users_run.py).
if os.environ.get("TEST_OPTIMIZED") != "1":
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    flags += UNOPTIMIZED
os.environ.setdefault("XLA_FLAGS", " ".join(flags))
# The name of a folder that is missing may be that of a model on the hub, and the tests use no
# network. tests/storage/test_hub.py has a hub of its own.
os.environ["HF_HUB_OFFLINE"] = "1"

import flax.core.scope
import jax
import pytest
from jax._src.interpreters import mlir

jax.config.update("jax_num_cpu_devices", 8)
# A background job of a shell ignores SIGINT, and so would the programs that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

from tests import annotations, fake_gcs

# The annotations of arrays are checked with --full alone, because the checks take a fifth of the
# suite's time: 49 instead of 39 s for 65 tests of models and training (2026-11-26). The processes
# of pytest-xdist have no arguments and inherit the variable. Programs that run as users run them
# are not checked.
if "--full" in sys.argv:
    os.environ["TEST_FULL"] = "1"
if os.environ.get("TEST_FULL") == "1" and os.environ.get("TEST_OPTIMIZED") != "1":
    annotations.install()

from transformer_jax import config as configs
from transformer_jax.data.sources import text_files
from transformer_jax.runs import open as opening
from transformer_jax.training import trainer

# Programs for eight devices take longer to compile. Tests of the mesh take all of them.
opening.local_devices = lambda: jax.local_devices()[:1]

STARTED = time.monotonic()
OUT_OF_TIME = "--seconds have passed"
NEEDS_FULL = "needs --full"
# The files that take longest come first, so that the workers end together.
LONGEST = ("tests/test_accelerator.py", "tests/training/test_guests.py", "tests/test_configs.py")
MAX_PROGRAMS = 30  # that a test may compile
_programs = [0]  # compiled so far, by this process
DRAW_CURVES = trainer.draw_curves
TINY = {
    "model.vocab_size": 96,
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "model.num_encoder_layers": 2,
    "model.num_decoder_layers": 2,
    "model.max_length": 128,
    "model.dropout": 0.0,
    "task.source_length": 32,
    "task.target_length": 32,
    "train.batch": 8,
    "train.num_steps": 4,
    "train.log_every": 2,
    "train.eval_every": 4,
    "checkpoint.every": 2,
    "decode.max_extra": 8,
    "decode.beam": 1,
    "task.bleu_lines": 0,
    "optimizer.warmup_steps": 2,
    # Unigram pieces of a small text differ between releases of SentencePiece.
    "data.tokenizer": "bpe",
}


def updates(number: int) -> int:
    """Returns the updates of a run whose scores are read with --full alone: 4 without it."""
    return number if os.environ.get("TEST_FULL") == "1" else 4


SENTENCES = [
    ("a dog runs", "ein hund rennt"),
    ("the cat sleeps", "die katze schläft"),
    ("a man reads a book", "ein mann liest ein buch"),
    ("two women sing", "zwei frauen singen"),
    ("the child eats", "das kind isst"),
    ("we see the house", "wir sehen das haus"),
]


def write_pairs(folder, count=60):
    """Writes parallel files train/valid.{en,de} of short sentences.

    Returns the overrides that name them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for split, first, size in (("train", 0, count), ("valid", count, count // 4)):
        chosen = [
            [SENTENCES[(i + j * j) % 6] for j in range(1 + i % 3)]
            for i in range(first, first + size)
        ]
        for side, ending in enumerate(("en", "de")):
            text = "".join(" and ".join(pair[side] for pair in pairs) + "\n" for pairs in chosen)
            (folder / f"{split}.{ending}").write_text(text, encoding="utf-8")
    return {
        f"data.{split}_{side}": str(folder / f"{split}.{ending}")
        for split in ("train", "valid")
        for side, ending in (("source", "en"), ("target", "de"))
    }


def build_config(folder, **overrides):
    """Returns a tiny translation config; overrides are written model__dropout=0.1."""
    config = configs.experiment(model={"name": "encoder_decoder"}, task={"name": "translation"})
    files = write_pairs(folder / "text") | {"data.cache": str(folder / "cache")}
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    for key, value in (TINY | files | changes).items():
        configs.set_key(config, key, value)
    configs.validate(config)
    return config


TEXT = [
    "the cat sat on the mat.",
    "a dog ran to the cat and sat.",
    "the dog sat. a cat ran.",
    "to the mat the dog ran.",
]


def build_gpt(folder, **overrides):
    """Returns a tiny GPT's config; overrides are written model__dropout=0.1."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 60), ("valid", 9)):
        (folder / f"{name}.txt").write_text(
            "\n\n".join(
                " ".join(TEXT[(i * j) % 4] for j in range(1, 3 + i % 3)) for i in range(count)
            )
        )
    config = configs.experiment(
        model=dict(
            name="gpt",
            vocab_size=300,
            d_model=32,
            num_layers=2,
            num_heads=2,
            max_length=64,
            dropout=0.1,
            attention_dropout=0.1,
        ),
        task=dict(name="causal_lm", length=32),
        data=dict(
            tokenizer="byte_bpe",
            train_files=f"{folder}/train.txt",
            valid_files=f"{folder}/valid.txt",
            cache=f"{folder}/cache",
        ),
        train=dict(num_steps=60, batch=8, log_every=30, eval_every=30),
        optimizer=dict(learning_rate=1e-2, warmup_steps=10),
        checkpoint=dict(every=30),
        decode=dict(batch=4),
    )
    for key, value in overrides.items():
        configs.set_key(config, key.replace("__", "."), value)
    configs.validate(config)
    return config


SPLIT = list(itertools.chain.from_iterable(text.rstrip(".").split(". ") for text in TEXT))


def build_bert(folder, **overrides):
    """Returns a tiny BERT's config; overrides are written model__dropout=0.1."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 40), ("valid", 12)):
        documents = [
            "\n".join(SPLIT[(i * j + j) % len(SPLIT)] for j in range(2 + i % 5))
            for i in range(count)
        ]
        (folder / f"{name}.txt").write_text("\n\n".join(documents))
    config = configs.experiment(
        model=dict(
            name="bert",
            vocab_size=80,
            d_model=32,
            num_layers=2,
            num_heads=2,
            max_length=64,
            dropout=0.1,
            attention_dropout=0.1,
        ),
        task=dict(name="masked_lm", phases=((0.5, 16, 3), (0.5, 32, 5))),
        data=dict(
            tokenizer="wordpiece",
            train_files=f"{folder}/train.txt",
            valid_files=f"{folder}/valid.txt",
            cache=f"{folder}/cache",
        ),
        train=dict(num_steps=60, batch=8, log_every=30, eval_every=30),
        optimizer=dict(learning_rate=1e-2, warmup_steps=10),
        checkpoint=dict(every=30),
        decode=dict(batch=4),
    )
    for key, value in overrides.items():
        configs.set_key(config, key.replace("__", "."), value)
    configs.validate(config)
    return config


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="also run the tests marked as full")
    parser.addoption(
        "--seconds", type=float, help="skip the tests that would start later than this"
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "full: run with --full alone")
    config.addinivalue_line(
        "markers", "sample(*ids): the cases of a test that run without --full, by their ids"
    )
    config.addinivalue_line(
        "markers", "hardware: compiles for TPUs or GPUs; run with --full where their compilers are"
    )
    jax.monitoring.register_event_duration_secs_listener(_count_program)
    if not config.getoption("--full"):
        # Wherever a model is traced, Flax traces the initializer of each parameter again, to
        # compare the shapes. This takes a tenth of the time of tracing, so it is left to --full.
        flax.core.scope.jax = types.SimpleNamespace(**vars(jax) | {"eval_shape": lambda init: ()})
        # JAX makes a context of MLIR for each program that it lowers, which takes 3.6 ms. The
        # programs of a file share one: 30 sines are lowered in 6.6 instead of 10.4 ms (2026-11-27).
        mlir.make_ir_context = _shared_context


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
    if config.getoption("--full"):
        return
    ids = collections.defaultdict(set)
    for item in items:
        if item.get_closest_marker("sample"):
            ids[item.nodeid.partition("[")[0]].add(item.callspec.id)
    for item in items:
        sample = item.get_closest_marker("sample")
        if sample:
            test = item.nodeid.partition("[")[0]
            unknown = set(sample.args) - ids[test]
            if unknown and not any("[" in name for name in config.args):
                raise pytest.UsageError(f"{test}: its sample names no cases {sorted(unknown)}")
        if sample and item.callspec.id not in sample.args:
            item.add_marker("full")
        if item.get_closest_marker("full") or item.get_closest_marker("hardware"):
            item.add_marker(pytest.mark.skip(reason=NEEDS_FULL))


def pytest_collection_finish():
    """Keeps the modules and the tests out of later garbage collections, which then take half."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    seconds = item.config.getoption("--seconds")
    if seconds and time.monotonic() - STARTED > seconds:
        pytest.skip(OUT_OF_TIME)


_contexts = {}  # {thread: context}, as a context may not be used by two threads at once
_make_context = mlir.make_ir_context


def _shared_context():
    thread = threading.get_ident()
    if thread not in _contexts:
        _contexts[thread] = _make_context()
    return _contexts[thread]


def _count_program(event, seconds, **_):
    if event == "/jax/core/compile/backend_compile_duration":
        _programs[0] += 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fails a test that compiles many programs: mostly a reference that runs op by op.

    Each op of a function that is not jitted is a program of its own for each shape, and takes 20 ms
    to compile. The fixtures of a test do not count.
    """
    before = _programs[0]
    result = yield
    compiled = _programs[0] - before
    if compiled > MAX_PROGRAMS and not item.get_closest_marker("full"):
        pytest.fail(f"compiled {compiled} programs, more than {MAX_PROGRAMS}: jit the reference")
    return result


def pytest_terminal_summary(terminalreporter):
    """Names the tests for which there was no time, and in --full those that lack a package."""
    skipped = {}
    for test in terminalreporter.stats.get("skipped", []):
        reason = test.longrepr[2] if isinstance(test.longrepr, tuple) else str(test.longrepr)
        reason = reason.removeprefix("Skipped: ")
        skipped.setdefault(reason, []).append(test.nodeid.partition("::")[0])
    for reason, files in sorted(skipped.items()):
        if reason == OUT_OF_TIME or terminalreporter.config.getoption("--full"):
            names = ", ".join(sorted(set(files)))
            terminalreporter.write_line(f"skipped {len(files)} tests of {names}: {reason}")


# Tracing makes many objects and little garbage. Garbage collection took a quarter of the time.
gc.set_threshold(100_000, 50, 50)


@pytest.fixture(scope="module", autouse=True)
def _forgotten():
    """Forgets the compiled programs of each test file, which would take gigabytes."""
    yield
    jax.clear_caches()
    _contexts.clear()


@pytest.fixture(scope="session", autouse=True)
def _undrawn():
    """Turns off the drawing of curves, which takes longer than a run's few updates.

    The fixture `drawn` turns it on.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "draw_curves", lambda folder, run: None)
        yield


@pytest.fixture
def drawn(monkeypatch):
    monkeypatch.setattr(trainer, "draw_curves", DRAW_CURVES)


@pytest.fixture
def tiny(tmp_path):
    """Returns `build_config` with all files below tmp_path."""
    return lambda **overrides: build_config(tmp_path, **overrides)


@pytest.fixture(scope="session")
def server():
    """Returns a fake of Google Cloud Storage.

    It is the same for all tests, because TensorStore reads its address only once.
    """
    with fake_gcs.serving() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture
def gcs(server, monkeypatch):
    # An earlier test may have named the user's own folder of digests.
    monkeypatch.setattr(text_files, "_known", text_files._Digests())
    server.reset()
    return server
