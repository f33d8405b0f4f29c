"""Measures the package on one GPU that is at hand for minutes, the most valuable figures first.

python benchmarks/accelerator.py [--out=DIR] [--rehearse] [PART ...]

The parts run in the order correctness, gpt2_124m, attention, bert_large, resume, transformer_big,
decoding, recurrence, compilation; by default all of them do:

- `correctness`: the GPU's rates; loss and gradients beside the CPU's, bfloat16 beside float32;
- `gpt2_124m`, `bert_large`, `transformer_big`: training in tokens/s, the share of the GPU's rate
  (MFU), and the peak of memory beside the verdict of `dry_run`, all beside torch.compile with fused
  attention;
- `attention`: the kernel that is chosen, its error and its time, and whether cuDNN is in the
  executed program; packed rows and dropout, too;
- `resume`: whether a run that is killed and continued equals one that is not, bit for bit, with and
  without XLA's deterministic kernels;
- `decoding`: sampling and beam search, against Hugging Face's `generate`;
- `recurrence`: an update of a layer of LSTM beside one of attention, by the length of the rows;
- `compilation`: the time to compile four times as many layers. The other parts say how long their
  programs took, the first ones without any cache.

A part has a limit of time, and what an earlier part leaves of its own is added; together the first
three take at most 4 minutes and all of them 13. A part writes DIR/PART_GPU.json, one case after the
other, so nothing is lost when it is stopped. What failed is named at the end. Cases that an earlier
call measured with the same sources on the same kind of GPU are not measured again, if their file is
in DIR or in benchmarks/results/accelerator; delete it to measure them again. DIR is by default the
variable OUT of the environment, else benchmarks/results/accelerator. DIR/log.txt has all messages.

Each side of a part is a process of its own. Both sides of a part compile at the same time, but
while one measures, the other waits. `--rehearse` tries all of it in tiny sizes on a CPU.
wheelhouse.py beside this file collects what a machine without a network lacks.
"""

import argparse
import contextlib
import dataclasses
import datetime
import faulthandler
import fcntl
import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from importlib import metadata

import harness
from wheelhouse import MODULES

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "accelerator"
LIBRARIES = (
    "jax jaxlib jax-cuda12-plugin jax-cuda13-plugin flax optax orbax-checkpoint numpy grain torch "
    "triton transformers nvidia-cudnn-cu12 nvidia-cudnn-cu13 nvidia-cublas"
).split()
NO_GPU = 3  # exit code of a process whose library does not see the GPU
REHEARSAL_SECONDS = 1800  # the limit of a rehearsal, on however busy a CPU

# ------------------------------------------------------------------------------------------ cases


@dataclasses.dataclass(frozen=True)
class Case:
    """One measurement: function(tiny) returns its figures.

    Cases of a part with the same `process` share a process. Its name begins with the library that
    runs there, up to a comma. A second process compiles while the first does.
    """

    function: Callable[[bool], dict]
    process: str = "jax"
    is_rehearsed: bool = True

    @property
    def library(self) -> str:
        return self.process.split(",")[0]


@dataclasses.dataclass(frozen=True)
class Part:
    seconds: int  # its limit
    cases: dict[str, Case]


@dataclasses.dataclass(frozen=True)
class Model:
    """`rows` and `peer` are functions of steps.py and peers.py, `sizes` the arguments of `rows`."""

    rows: str
    peer: str
    sizes: dict[str, int]
    tiny: dict[str, int]  # differences in a rehearsal
    checked: dict[str, int]  # differences where results are compared with the CPU's

    def make_rows(self, differences: dict[str, int], **more):
        """Returns the sizes, and the task and the rows that steps.py makes of them."""
        import steps

        sizes = self.sizes | differences | more
        if "masked" in sizes:  # BERT computes the logits of the masked positions, or of all
            sizes["predicted"] = sizes[sizes.get("predicted", "masked")]
        return sizes, *getattr(steps, self.rows)(**sizes)


_TINY = dict(rows=2, length=32, layers=1, width=64)
_CHECKED = dict(rows=4, length=128, layers=2, width=256)
MODELS = {
    "gpt2_124m": Model(
        "gpt_rows",
        "gpt",
        dict(rows=32, length=1024, layers=12, width=768, vocab_size=50_257),
        _TINY | dict(vocab_size=300),
        _CHECKED | dict(vocab_size=1000),
    ),
    "bert_large": Model(
        "bert_rows",
        "bert",
        dict(rows=32, length=512, masked=80, layers=24, width=1024),
        _TINY | dict(masked=5),
        _CHECKED | dict(masked=20),
    ),
    "transformer_big": Model(
        "translation_rows",
        "marian",
        dict(rows=96, length=256, layers=6, width=1024, d_ff=4096, heads=16, vocab_size=37_000),
        _TINY | dict(length=16, d_ff=128, heads=1, vocab_size=300),
        _CHECKED | dict(d_ff=512, heads=4, vocab_size=1000),
    ),
    # Its attention has a learned bias. Its gradients are compared, and its speed is not measured.
    "t5": Model(
        "t5_rows",
        "",
        dict(rows=32, length=512, layers=12, width=768, vocab_size=32_128),
        _TINY | dict(vocab_size=300),
        _CHECKED | dict(vocab_size=1000),
    ),
}
DROPOUT = dict(dropout=0.1, attention_dropout=0.1)
# Relative errors of loss and gradients that are still right, beside the CPU's float32.
TOLERANCES = {"float32": (1e-5, 1e-3), "bfloat16": (1e-2, 5e-2)}


def card(tiny: bool) -> dict:
    """The device as JAX sees it, and the rates of large products and of copies."""
    import jax
    import jax.numpy as jnp

    from transformer_jax import hardware

    device = jax.devices()[0]
    # tanh and exp need CUDA's library of functions, which XLA must find.
    total = jax.jit(lambda x: jnp.tanh(jnp.exp(x)).sum())(jnp.ones(1000))
    copy = jax.jit(lambda x: x + 1, donate_argnums=0)
    array = copy(jnp.ones(2 ** (20 if tiny else 30), jnp.float32))

    def copies(count: int) -> None:
        nonlocal array
        for _ in range(count):
            array = copy(array)
        array.block_until_ready()

    seconds = seconds_of_one(copies, tiny)
    with turn(alone=True):
        rate = hardware.measured(device.platform)
    return {
        "device": device.device_kind,
        "compute_capability": getattr(device, "compute_capability", None),
        "product_tflops": rate / 1e12,
        "copy_gb_per_second": 2 * array.nbytes / seconds / 1e9,
        "ok": abs(float(total) / 991.3289 - 1) < 1e-4,  # 1000 tanh(e)
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def gradients(tiny: bool, name: str, **more) -> dict:
    """Loss and gradients of one update, in both dtypes, beside those of the CPU in float32.

    The update is that of training with plain SGD, whose difference of parameters is the gradient.
    Its rate, a power of two, is so large that the parameters' own rounding is nothing beside it.
    """
    import jax
    import numpy as np
    import steps
    from ml_collections import ConfigDict

    from transformer_jax import losses
    from transformer_jax.training import step as states
    from transformer_jax.training.step import Program

    rate = 2.0**10
    model = MODELS[name]
    initial = None

    def update(device, dtype: str, precision: str | None):
        nonlocal initial
        differences = model.tiny if tiny else model.checked
        _, task, batch, _ = model.make_rows(differences, dtype=dtype, **more)
        config = ConfigDict(task.config).copy_and_resolve_references()
        config.optimizer.update(name="sgd", momentum=0.0, weight_decay=0.0, learning_rate=rate)
        program = Program.of(config, task, [device])
        with jax.default_matmul_precision(precision):
            if initial is None:
                initial = jax.device_get(states.init(task.config, program))
            state = jax.tree.map(
                lambda x, to: jax.device_put(x, to.sharding), initial, program.state
            )
            batch = steps.on_device(program, batch)
            # XLA would also try Triton's float32 products, which take minutes to compile.
            options = {"xla_gpu_enable_triton_gemm": False} if precision else None
            step = program.train_step.lower(state, batch).compile(compiler_options=options)
            state = step(state, batch)
        after = jax.device_get(state.params)
        grads = jax.tree.map(lambda x, y: (np.float64(x) - y) / rate, initial.params, after)
        flat = np.concatenate([x.ravel() for x in jax.tree.leaves(grads)])
        return losses.mean_metrics(state.metrics)["loss"], flat

    with turn(alone=False):
        cpu, here = jax.devices("cpu")[0], jax.devices()[0]
        loss, grads = update(cpu, "float32", "highest")
        row = {"loss": loss, "gradient_norm": float(np.linalg.norm(grads)), "ok": True}
        for dtype, precision in (("bfloat16", None), ("float32", "highest")):
            if here == cpu and dtype == "float32":
                continue  # that is the reference
            loss_here, grads_here = update(here, dtype, precision)
            loss_error = abs(loss_here / loss - 1)
            gradient_error = float(np.linalg.norm(grads_here - grads) / np.linalg.norm(grads))
            row |= {f"{dtype}_loss_error": loss_error, f"{dtype}_gradient_error": gradient_error}
            most_loss, most_gradient = TOLERANCES[dtype]
            row["ok"] &= loss_error < most_loss and gradient_error < most_gradient
    return row


def train(tiny: bool, name: str, is_profiled: bool = False, **more) -> dict:
    """Updates on random rows: speed, memory, and what is in the program."""
    import jax
    import steps

    from transformer_jax import hardware, losses
    from transformer_jax.training import step as states
    from transformer_jax.training.step import Program

    model = MODELS[name]
    sizes, task, batch, _ = model.make_rows(model.tiny if tiny else {}, **more)
    program = Program.of(task.config, task, jax.devices()[:1])
    with turn(alone=False):
        step, row = planned(task, program)
        state = states.init(task.config, program)
        placed = steps.on_device(program, batch)
        peak_before = peak_bytes()
        state = jax.block_until_ready(step(state, placed))

    def updates(count: int) -> None:
        nonlocal state
        for _ in range(count):
            state = step(state, placed)
        jax.block_until_ready(state)

    seconds = seconds_of_one(updates, tiny)
    if is_profiled:
        with turn(alone=True):
            row["kernels"] = kernel_times(updates)
    loss = losses.mean_metrics(state.metrics)["loss"]
    chip = hardware.of(jax.devices()[0].device_kind)
    flops = task.flops() * sizes["rows"]
    # A part's later programs can't be told apart in the peak, unless they need more.
    peak = peak_bytes()
    return row | {
        "tokens_per_second": sizes["rows"] * sizes["length"] / seconds,
        "seconds": seconds,
        "tflops": flops / seconds / 1e12,
        "mfu": chip and flops / seconds / chip.flops,
        "peak_gb": peak / 1e9 if peak > peak_before else None,
        "loss": loss,
        "ok": loss == loss and int(state.skipped) == 0,
    }


def planned(task, program):
    """Returns the compiled update, and what `dry_run` says about it on this device."""
    from transformer_jax.planning import estimate, verdict

    began = time.perf_counter()
    lowered = program.train_step.lower(program.state, program.batch)
    row = {"trace_seconds": time.perf_counter() - began}
    try:
        estimated = estimate.estimate(task.config, task, program)
        lines = verdict.lines(task.config, task, program, estimated)
        row |= {
            "compile_seconds": estimated.compile_seconds,
            "dry_run_gb": estimated.peak / 1e9,
            "dry_run_mfu_at_most": estimated.mfu,
            "dry_run": next((x for x in lines if re.match("it fits|it does not", x)), None),
        }
    except Exception as error:
        # The figures of training need no plan.
        traceback.print_exc()
        row["dry_run"] = f"failed: {type(error).__name__}: {error}"[:400]
    step = lowered.compile()  # the estimate has compiled it
    return step, row | {"custom_calls": custom_calls(step.as_text())}


def peak_bytes() -> int:
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)


def custom_calls(text: str) -> dict[str, int]:
    """Returns how often a compiled program has each library's kernel, cuDNN's attention for one."""
    names = re.findall(r'custom_call_target="([^"]+)"', text)
    names += re.findall(r'"kind":"(__\w+)"', text)  # fusions that a library or Triton runs
    return {name: names.count(name) for name in sorted({*names})}


def kernel_times(updates: Callable[[int], None], count: int = 3) -> list:
    """Returns [name, milliseconds an update, calls an update] of the longest kernels."""
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            updates(count)
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(path))
    spent = {}
    for plane in data.planes:
        for line in plane.lines if "GPU" in plane.name else ():
            for event in line.events if "Stream" in line.name else ():
                spent.setdefault(event.name, []).append(event.duration_ns)
    longest = sorted(spent.items(), key=lambda item: -sum(item[1]))[:40]
    return [[name[:100], sum(ns) / count / 1e6, len(ns) / count] for name, ns in longest]


def train_peer(tiny: bool, name: str) -> dict:
    """Updates of the same model and rows by torch, with the first fused kernel that works."""
    import peers
    import steps

    model = MODELS[name]
    sizes, _, _, rows = model.make_rows(model.tiny if tiny else {})
    failures = {}
    for way, options in (peers.TRAINING | peers.PADDED).items():
        if options["compiled"] is tiny:
            continue
        try:
            with turn(alone=False):
                began = time.perf_counter()
                peer = getattr(peers, model.peer)(**getattr(steps, f"{model.peer}_peer")(sizes))
                step = peers.train_step(peer, [rows], **options)
                step()
                compile_seconds = time.perf_counter() - began
            seconds = seconds_of_one(repeated(step), tiny)
        except RuntimeError as error:  # memory, or a missing kernel
            failures[way] = str(error).strip()[:300]
            peers.torch._dynamo.reset()
            continue
        return {
            "way": way,
            "tokens_per_second": sizes["rows"] * sizes["length"] / seconds,
            "seconds": seconds,
            "compile_seconds": compile_seconds,
            "peak_gb": torch_peak_gb(),
            "failures": failures,
        }
    raise RuntimeError(f"torch: {failures}")


def torch_peak_gb() -> float | None:
    import peers

    return peers.torch.cuda.max_memory_allocated() / 1e9 if peers.DEVICE == "cuda" else None


def attend(tiny: bool, kind: str, rate: float = 0.0) -> dict:
    """Attention, forward and backward, with dropout of its weights at a rate."""
    import attention
    import jax

    from transformer_jax.layers import attention as kernels
    from transformer_jax.layers import recurrent

    calls = attention_calls(tiny, kind)
    with turn(alone=False):
        arrays, mask = attention.make_inputs(calls)
        inputs = attention.on_device(arrays)
        drop = None
        if rate:
            drop = recurrent.drawn(jax.random.key(1), rate, calls.rows, attention.HEADS)
        kernel = kernels.pick(*inputs[:2], mask, dropout=bool(rate))
        began = time.perf_counter()
        run = attention.passes(kernel).lower(*inputs, mask, drop=drop).compile()
        compile_seconds = time.perf_counter() - began
        errors = attention.errors(run(*inputs, mask, drop=drop), arrays, mask, drop)

    def several(count: int) -> None:
        for _ in range(count * calls.times):
            result = run(*inputs, mask, drop=drop)
        jax.block_until_ready(result)

    seconds = seconds_of_one(several, tiny)
    called = custom_calls(run.as_text())
    tolerance = attention.TOLERANCES[inputs[0].dtype.name]
    return {
        "kernel": kernel.__name__,
        "cudnn_in_the_program": any("fmha" in name or "cudnn" in name for name in called),
        "custom_calls": called,
        "errors": errors,
        "ok": all(error < tolerance for error in errors.values()),
        "milliseconds": 1e3 * seconds / calls.times,
        "compile_seconds": compile_seconds,
    }


def attend_peer(tiny: bool, kind: str, rate: float = 0.0) -> dict:
    import attention
    import peers

    has_array = attention.KINDS[kind][1] is not None
    ways = list(peers.ATTENTION[has_array])
    way = ways[-1] if has_array else ways[0]  # on a GPU flex_attention, which skips tiles, or flash
    calls = attention_calls(tiny, kind)
    with turn(alone=False):
        run = attention.torch_calls(calls, way, rate)
        run()
    seconds = seconds_of_one(repeated(run), tiny)
    return {"way": way, "milliseconds": 1e3 * seconds / calls.times}


def attention_calls(tiny: bool, kind: str):
    import attention

    rows, length, times = (1, 128, 1) if tiny else (32, 1024, 10)
    return attention.Calls(kind, rows, length, times)


def resume(tiny: bool, flags: str) -> dict:
    """A run that is killed and continued, beside one that is neither, and one that is repeated."""
    updates = 240 if tiny else 1200
    sizes = dict(num_layers=1, d_model=32, num_heads=2, max_length=32) if tiny else {}
    with turn(alone=False), tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        text = "".join(
            path.read_text("utf-8", "ignore")
            for path in sorted(pathlib.Path(os.__file__).parent.glob("*.py"))[:40]
        )
        (folder / "train.txt").write_text(text[: 2 ** (15 if tiny else 19)])
        (folder / "valid.txt").write_text(text[2**19 : 2**19 + 2**12])
        keys = {
            "data.corpus": "",
            "data.train_files": folder / "train.txt",
            "data.valid_files": folder / "valid.txt",
            "data.cache": folder / "cache",
            "data.tokenizer": "characters",
            "model.vocab_size": 512,
            **{f"model.{key}": value for key, value in sizes.items()},
            "model.unroll": sizes.get("num_layers", 4),
            **{f"model.{key}": value for key, value in DROPOUT.items()},
            "task.length": sizes.get("max_length", 256),
            "task.sample_tokens": 0,
            "train.num_steps": updates,
            "train.log_every": updates // 60,
            "train.eval_every": updates,
            "checkpoint.every": updates // (3 if tiny else 6),
        }
        command = [sys.executable, "-m", "transformer_jax.train_gpt"]
        command += ["--config=configs/gpt/quickstart.py"]
        command += [f"--config.{key}={value}" for key, value in keys.items()]
        env = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}

        def start(run: str) -> subprocess.Popen:
            words = [*command, f"--workdir={folder / run}"]
            with open(folder / f"{run}.log", "a") as log:
                return subprocess.Popen(words, cwd=ROOT, env=env, stdout=log, stderr=log)

        def finish(run: str, process: subprocess.Popen) -> None:
            if process.wait():
                said = (folder / f"{run}.log").read_text()[-300:]
                raise RuntimeError(f"the {run} run ended with {process.returncode}: {said}")

        finish("whole", start("whole"))
        # The first run compiled the program; these two read it from the cache.
        killed = start("killed")
        repeated = None if tiny else start("repeated")
        saved = []
        while killed.poll() is None and not saved:
            time.sleep(0.01)
            saved = whole_checkpoints(folder / "killed")
        killed.kill()
        is_killed = killed.wait() == -signal.SIGKILL
        finish("killed", start("killed"))
        if repeated:
            finish("repeated", repeated)
        whole = outcome(folder / "whole", updates)
        is_equal = outcome(folder / "killed", updates) == whole
        is_repeated = outcome(folder / "repeated", updates) == whole if repeated else None
        return {
            "flags": flags,
            "updates": updates,
            "killed_after_checkpoint": max(saved, default=None) if is_killed else None,
            "continued_equals_whole": is_equal,
            "repeated_equals_whole": is_repeated,
            "first_update_seconds": {
                run: re.findall(r"first step after ([\d.]+) s", (folder / f"{run}.log").read_text())
                for run in ("whole", "killed")
            },
            # Without deterministic kernels, runs may differ, killed or not.
            "ok": is_killed and (is_equal or (is_repeated is False and not flags)),
        }


def whole_checkpoints(run: pathlib.Path) -> list[int]:
    folder = run / "checkpoints"
    return [int(x.name) for x in folder.iterdir() if x.name.isdigit()] if folder.exists() else []


def outcome(run: pathlib.Path, updates: int) -> tuple[str, dict]:
    """Returns a digest of a run's last parameters, and its losses."""
    import jax
    import numpy as np

    from transformer_jax.runs.open import open_run

    _, params = open_run(run, step=updates)
    digest = hashlib.sha256()
    for array in jax.tree.leaves(params):
        digest.update(np.asarray(array).tobytes())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}
    return digest.hexdigest(), losses


def decode(tiny: bool, side: str, batch: int) -> dict:
    """A GPT-2 124M draws 128 tokens after each prompt of 64."""
    import decode

    case = decode.Texts(12, 768, batch, prompt_length=64, count=128)
    if tiny:
        case = decode.Texts(1, 64, min(batch, 2), prompt_length=8, count=4)
    make = functools.partial(getattr(decode, f"{side}_texts"), case)
    return token_rate(tiny, make, case.batch * case.count)


def beam(tiny: bool, side: str) -> dict:
    """The base Transformer with beam 4 writes as many tokens as sentences have."""
    import beams

    layers, width, vocab_size, sentences, size = (
        (1, 64, 96, 4, 2) if tiny else (6, 512, 8000, 256, 64)
    )
    lengths = beams.draw_lengths(sentences)
    case = beams.Beams(layers, width, vocab_size, lengths, size)
    make = functools.partial(beams.our_beams, case)
    if side == "peer":
        make = functools.partial(beams.peer_beams, case, "generate", 0)
    return token_rate(tiny, make, int(lengths[:, 1].sum()))


def token_rate(tiny: bool, make: Callable[[], Callable], tokens: int) -> dict:
    with turn(alone=False):
        began = time.perf_counter()
        call = make()
        call()
        first_seconds = time.perf_counter() - began
        if not tiny:
            call()
    seconds = seconds_of_one(repeated(call), tiny)
    return {
        "tokens_per_second": tokens / seconds,
        "seconds": seconds,
        "compile_seconds": first_seconds,
    }


def recur(tiny: bool) -> dict:
    """The milliseconds of an update that benchmarks/distance.py measures, by cell and length."""
    import distance

    with turn(alone=True):
        return {"milliseconds_of": {row["case"]: row["ours"] for row in distance.lengths(tiny)}}


def compile_deep(tiny: bool) -> dict:
    """Compiles GPT-2's shape with four times as many layers, and dropout.

    The second time, a program of the same operations comes from the folder of compiled programs.
    """
    import jax

    from transformer_jax.training.step import Program

    model = MODELS["gpt2_124m"]
    layers = 4 * (model.tiny if tiny else model.sizes)["layers"]
    differences = (model.tiny if tiny else {}) | {"layers": layers}
    _, task, *_ = model.make_rows(differences, unroll=1, **DROPOUT)
    with turn(alone=False):
        _, row = planned(task, Program.of(task.config, task, jax.devices()[:1]))
        again = Program.of(task.config, task, jax.devices()[:1])
        lowered = again.train_step.lower(again.state, again.batch)
        began = time.perf_counter()
        lowered.compile()
        row["cached_compile_seconds"] = time.perf_counter() - began
    return {"layers": layers} | row


SECOND = "jax, second"
PARTS = {
    "correctness": Part(
        60,
        {
            "card": Case(card),
            "GPT": Case(functools.partial(gradients, name="gpt2_124m"), is_rehearsed=False),
            "GPT, dropout": Case(functools.partial(gradients, name="gpt2_124m", **DROPOUT)),
            "BERT": Case(functools.partial(gradients, name="bert_large"), SECOND, False),
            "Transformer": Case(
                functools.partial(gradients, name="transformer_big"), SECOND, False
            ),
            "T5": Case(functools.partial(gradients, name="t5"), SECOND, False),
        },
    ),
    "gpt2_124m": Part(
        100,
        {
            "inline": Case(functools.partial(train, name="gpt2_124m"), is_rehearsed=False),
            "torch": Case(functools.partial(train_peer, name="gpt2_124m"), "torch"),
            "scanned": Case(
                functools.partial(train, name="gpt2_124m", unroll=1), is_rehearsed=False
            ),
            "scanned, dropout": Case(
                functools.partial(train, name="gpt2_124m", unroll=1, dropout=0.1),
                is_rehearsed=False,
            ),
            "scanned, dropout, of weights too": Case(
                functools.partial(train, name="gpt2_124m", unroll=1, **DROPOUT), is_rehearsed=False
            ),
            # Once more, because a profiler may end its process.
            "inline, profiled": Case(functools.partial(train, name="gpt2_124m", is_profiled=True)),
        },
    ),
    "attention": Part(
        45,
        {
            **{
                f"{kind}{', dropout' if rate else ''}": Case(
                    functools.partial(attend, kind=kind, rate=rate),
                    SECOND if rate else "jax",
                    is_rehearsed=kind == "packed",
                )
                for rate in (0.0, 0.1)
                for kind in ("packed", "causal", "padded", "dense")
            },
            **{
                f"{kind}{', dropout' if rate else ''}, torch": Case(
                    functools.partial(attend_peer, kind=kind, rate=rate), "torch"
                )
                for kind, rate in (("causal", 0.0), ("causal", 0.1), ("packed", 0.0))
            },
        },
    ),
    "bert_large": Part(
        150,
        {
            "scanned": Case(functools.partial(train, name="bert_large", unroll=1)),
            "torch, all positions": Case(functools.partial(train_peer, name="bert_large"), "torch"),
            "inline, all positions": Case(
                functools.partial(
                    train, name="bert_large", unroll=24, predicted="length", is_profiled=True
                ),
                SECOND,
                is_rehearsed=False,
            ),
            "scanned, dropout, of weights too": Case(
                functools.partial(train, name="bert_large", unroll=1, **DROPOUT), is_rehearsed=False
            ),
        },
    ),
    "resume": Part(
        85,
        {
            "by default": Case(functools.partial(resume, flags="")),
            "deterministic": Case(
                functools.partial(resume, flags="--xla_gpu_deterministic_ops=true"),
                SECOND,
                is_rehearsed=False,
            ),
        },
    ),
    "transformer_big": Part(
        70,
        {
            "inline": Case(functools.partial(train, name="transformer_big")),
            "torch": Case(functools.partial(train_peer, name="transformer_big"), "torch"),
        },
    ),
    "decoding": Part(
        130,
        {
            "GPT-2, 32 texts": Case(functools.partial(decode, side="our", batch=32)),
            "GPT-2, 32 texts, torch": Case(
                functools.partial(decode, side="peer", batch=32), "torch"
            ),
            "beam 4": Case(functools.partial(beam, side="our")),
            "beam 4, torch": Case(functools.partial(beam, side="peer"), "torch"),
            "GPT-2, one text": Case(
                functools.partial(decode, side="our", batch=1), is_rehearsed=False
            ),
            "GPT-2, one text, torch": Case(
                functools.partial(decode, side="peer", batch=1), "torch", is_rehearsed=False
            ),
        },
    ),
    "recurrence": Part(90, {"LSTM and attention": Case(recur)}),
    "compilation": Part(25, {"GPT-2, 48 layers": Case(compile_deep)}),
}

# ---------------------------------------------------------------------------- processes of a part

# In a process of a part: the file of its rows, whose lock decides who may use the GPU.
_rows: pathlib.Path | None = None


@contextlib.contextmanager
def turn(alone: bool):
    """Holds the GPU: alone to measure, else together with all that only compile."""
    if _rows is None:
        yield
        return
    with open(_rows.with_name("lock"), "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def seconds_of_one(calls: Callable[[int], object], tiny: bool) -> float:
    """Returns the seconds of one of n calls, where calls(n) makes them and waits for their end.

    It is the median of five series of about half a second, with nothing else on the GPU.
    """
    with turn(alone=True):
        once = harness.seconds(lambda: calls(1))
        if tiny:
            return once
        count = max(1, min(20, round(0.5 / once)))
        return statistics.median(harness.seconds(lambda: calls(count)) for _ in range(5)) / count


def repeated(call: Callable[[], object]) -> Callable[[int], None]:
    """Returns a function of n that makes n calls, each of which waits for its end."""

    def calls(count: int) -> None:
        for _ in range(count):
            call()

    return calls


def work(task: dict, parts: dict[str, Part]) -> None:
    """Measures the cases of one process and appends each row to a file as it ends.

    `task` has the `rows` file, whether it is `tiny`, and the `cases`, pairs of part and name.
    """
    global _rows
    _rows = pathlib.Path(task["rows"])
    library = parts[task["cases"][0][0]].cases[task["cases"][0][1]].library
    if not task["tiny"] and not harness.on_gpu(library):
        sys.exit(NO_GPU)
    for part, name in task["cases"]:
        began = time.time()
        try:
            row = parts[part].cases[name].function(task["tiny"])
        except Exception as error:
            # Whatever a case raises, the next one is measured.
            traceback.print_exc()
            row = {"failed": f"{type(error).__name__}: {str(error).strip()[:400]}"}
        row["took_seconds"] = time.time() - began
        with open(_rows, "a") as file:
            file.write(json.dumps([part, name, row], default=float) + "\n")


def start(task: dict, log) -> subprocess.Popen:
    command = [sys.executable, __file__, "--worker", json.dumps(task)]
    return subprocess.Popen(
        command, stdout=log, stderr=log, start_new_session=True, env=environment(task["tiny"])
    )


def environment(tiny: bool) -> dict[str, str]:
    """Returns the environment of the processes: both sides share the GPU's memory."""
    found = os.environ | {
        "PYTHONUNBUFFERED": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "TF_CPP_MIN_LOG_LEVEL": "3" if tiny else "2",  # XLA's messages are for its developers
        "TOKENIZERS_PARALLELISM": "false",
    }
    found.pop("JAX_PLATFORMS", None)  # the CPU is there, too
    if tiny:
        # Most of a rehearsal is compilation.
        found |= {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        return found | {"CUDA_VISIBLE_DEVICES": ""}
    # XLA looks for CUDA's library of functions there, and not every wheel of JAX brings it.
    library = "nvvm/libdevice/libdevice.10.bc"
    compiler = shutil.which("nvcc")
    if compiler and not pathlib.Path("/usr/local/cuda", library).exists():
        folder = pathlib.Path(compiler).resolve().parent.parent
        if (folder / library).exists():
            flags = f"--xla_gpu_cuda_data_dir={folder} {found.get('XLA_FLAGS', '')}"
            found["XLA_FLAGS"] = flags.rstrip()
    return found


# ------------------------------------------------------------------------------------- all parts


class Records:
    """The JSON file of each part, with the rows of its cases.

    Rows of an earlier call are taken from `out`, or from benchmarks/results/accelerator, if the
    sources and the GPU were the same. A case that failed is not taken.
    """

    def __init__(self, parts: dict[str, Part], out: pathlib.Path, tiny: bool):
        self.parts, self.out, self.tiny = parts, out, tiny
        gpu = harness.gpu().partition(",")[0]
        self.card = "rehearsal" if tiny else re.sub(r"\W+", "_", gpu.lower())
        self.header = {
            "card": self.card,
            "machine": harness.machine(),
            "versions": versions(),
            "sources": sources(),
            "commit": commit(),
            "date": datetime.date.today().isoformat(),
        }
        self.rows = {name: self._earlier(name) for name in parts}

    def _earlier(self, part: str) -> dict[str, dict]:
        found = {}
        for folder in (RESULTS, self.out):
            with contextlib.suppress(OSError, ValueError):
                record = json.loads((folder / self._name(part)).read_text())
                if record["sources"] == self.header["sources"]:
                    found |= {x: row for x, row in record["cases"].items() if "failed" not in row}
        return found

    def _name(self, part: str) -> str:
        return f"{part}_{self.card}.json"

    def missing(self, part: str) -> list[str]:
        """Returns the cases of a part that have no row."""
        cases = self.parts[part].cases.items()
        names = [name for name, case in cases if case.is_rehearsed or not self.tiny]
        return [name for name in names if name not in self.rows[part]]

    def add(self, part: str, case: str, row: dict) -> None:
        """Adds a row and writes the file of its part."""
        self.rows[part][case] = row
        print(f"{part:16} {case:34} {described(row)}", flush=True)
        order = [name for name in self.parts[part].cases if name in self.rows[part]]
        record = {"part": part} | self.header
        record["cases"] = {name: self.rows[part][name] for name in order}
        self.out.mkdir(parents=True, exist_ok=True)
        partial = self.out / f"{self._name(part)}.partial"
        partial.write_text(json.dumps(record, indent=1) + "\n")
        partial.replace(self.out / self._name(part))


def measure(records: Records, names: Iterable[str], start: Callable = start) -> None:
    """Measures the cases of these parts that have no row.

    Each part has processes of its own. A rehearsal has one for all parts and each library.
    """
    todo = []
    for part in names:
        if records.missing(part):
            todo.append(part)
        else:
            print(f"{part:16} measured before")
    deadline = time.monotonic()
    for group in [todo] if records.tiny else [[part] for part in todo]:
        deadline += sum(records.parts[part].seconds for part in group)
        if records.tiny:
            deadline = time.monotonic() + REHEARSAL_SECONDS
        _measure_group(records, group, deadline, start)


def _measure_group(records: Records, group: list[str], deadline: float, start: Callable) -> None:
    """Measures parts whose cases share processes, until `deadline` by time.monotonic()."""
    by_process = {}
    for part in group:
        for name in records.missing(part):
            case = records.parts[part].cases[name]
            needed = ("torch", "transformers") if case.library == "torch" else ()
            if lacking := [x for x in needed if importlib.util.find_spec(x) is None]:
                records.add(part, name, {"skipped": f"{lacking[0]} is not installed"})
            else:
                process = case.library if records.tiny else case.process
                by_process.setdefault(process, []).append((part, name))
    records.out.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context(open(records.out / "log.txt", "a"))
        running = {}
        for number, (process, cases) in enumerate(by_process.items()):
            rows = folder / f"{number}.jsonl"
            task = {"rows": str(rows), "tiny": records.tiny, "cases": cases}
            running[process] = (start(task, log), rows)
        stack.callback(_end, [process for process, _ in running.values()])
        read = dict.fromkeys(running, 0)
        while True:
            ended = {name: child.poll() for name, (child, _) in running.items()}
            for process, (_, rows) in running.items():
                lines = rows.read_text().split("\n")[:-1] if rows.exists() else []
                for line in lines[read[process] :]:
                    records.add(*json.loads(line))
                read[process] = len(lines)
            is_late = time.monotonic() > deadline
            if is_late or None not in ended.values():
                break
            time.sleep(0.1)
    if ended.get("jax") == NO_GPU:
        print(
            f"the installed jax does not see this machine's GPU; {log.name} may say why",
            file=sys.stderr,
        )
        sys.exit(2)
    for process, cases in by_process.items():
        reason = f"the process of {process} ended with exit code {ended[process]}"
        if ended[process] is None:
            reason = "the limit of time was reached"
        elif ended[process] == NO_GPU:
            reason = "the installed torch does not see this machine's GPU"
        for part, name in cases[read[process] :]:
            records.add(part, name, {"failed": reason})


def _end(processes: list[subprocess.Popen]) -> None:
    """Kills the processes that still run, and their children.

    A process that still works first writes to the log where it is.
    """
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def described(row: dict) -> str:
    """Returns a row in words, the most important figures first."""
    if reason := row.get("failed") or row.get("skipped"):
        return f"{'FAILED' if 'failed' in row else 'skipped'}: {reason.splitlines()[0][:120]}"
    shown = {
        "ok": lambda x: "right" if x else "WRONG",
        "tokens_per_second": lambda x: f"{x:,.0f} tokens/s",
        "mfu": lambda x: f"MFU {x:.1%}",
        "product_tflops": lambda x: f"products {x:.3g} TFLOP/s",
        "copy_gb_per_second": lambda x: f"copies {x:.4g} GB/s",
        "milliseconds": lambda x: f"{x:.3g} ms",
        "kernel": str,
        "cudnn_in_the_program": lambda x: "cuDNN" if x else "no cuDNN",
        "peak_gb": lambda x: f"peak {x:.2f} GB",
        "dry_run_gb": lambda x: f"dry_run {x:.2f} GB",
        "dry_run": str,
        "compile_seconds": lambda x: f"compiled in {x:.1f} s",
        "cached_compile_seconds": lambda x: f"{x:.1f} s from the cache",
        "bfloat16_loss_error": lambda x: f"bfloat16: loss {x:.1e}",
        "bfloat16_gradient_error": lambda x: f"gradients {x:.1e}",
        "float32_loss_error": lambda x: f"float32: loss {x:.1e}",
        "float32_gradient_error": lambda x: f"gradients {x:.1e}",
        "killed_after_checkpoint": lambda x: f"killed after checkpoint {x}",
        "continued_equals_whole": lambda x: f"continued {'equals' if x else 'differs from'} whole",
        "repeated_equals_whole": lambda x: f"repeated {'equals' if x else 'differs from'} whole",
        "way": str,
    }
    return ", ".join(show(row[key]) for key, show in shown.items() if row.get(key) is not None)


def summarize(records: Records, names: Iterable[str]) -> int:
    """Prints a table of all rows and what failed. Returns the exit code."""
    bad = []
    print()
    for part in names:
        for case in records.parts[part].cases:
            if row := records.rows[part].get(case):
                print(f"{part:16} {case:34} {described(row)}")
                if "failed" in row or not row.get("ok", True):
                    bad.append(f"{part}: {case}")
    for case in bad:
        print(f"failed or wrong: {case}", file=sys.stderr)
    return 1 if bad else 0


def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def sources() -> str:
    """Returns a digest of the package's sources, which names them where there is no git."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "transformer_jax").rglob("*.py")):
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def commit() -> str | None:
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=pathlib.Path, help="folder of the results")
    parser.add_argument("--rehearse", action="store_true", help="all of it, tiny, on a CPU")
    arguments = parser.parse_args()
    if unknown := [part for part in arguments.parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; the parts: {', '.join(PARTS)}")
    if lacking := [
        name for name, module in MODULES.items() if not importlib.util.find_spec(module)
    ]:
        parser.error(
            f"not installed: {', '.join(lacking)}; python benchmarks/wheelhouse.py collects them "
            "for a machine without a network"
        )
    if not arguments.rehearse and not harness.gpu():
        parser.error("nvidia-smi names no GPU; --rehearse tries all of it on a CPU")
    out = arguments.out
    if out is None and os.environ.get("OUT"):
        out = pathlib.Path(os.environ["OUT"])
    with contextlib.ExitStack() as stack:
        if not (arguments.rehearse and os.environ.get("JAX_COMPILATION_CACHE_DIR")):
            # Empty at first, so that compilation is measured without a cache.
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
        if out is None and arguments.rehearse:
            out = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        records = Records(PARTS, (out or RESULTS).absolute(), arguments.rehearse)
        names = arguments.parts or list(PARTS)
        measure(records, names)
        return summarize(records, names)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        faulthandler.enable()  # a process that is ended at its limit writes where it is
        work(json.loads(sys.argv[2]), PARTS)
    else:
        sys.exit(main())
