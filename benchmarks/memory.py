"""Measures the memory of a training step: the largest batch on a GPU, bytes on a CPU.

python benchmarks/memory.py [--json=FILE] [--case=gpt2_124m] [--case=logits ...] [--tiny]

On a GPU, `gpt2_124m` and `bert_large` measure the rows that fit, to a sixteenth, and the peak at a
common batch: ours without and with full rematerialisation, torch eager with flash attention.

On a CPU, which has no such limit, the batches are equal:
- `rematerialised`: bytes that the compiler allocates for a step, with each rematerialisation;
- `logits`: the same with the logits in chunks, and with all logits at once;
- `resident`: the growth of a process that trains, ours and torch's (benchmarks/peers.py says how to
  install it).

Each figure comes from a separate process.
"""

import dataclasses
import functools
import importlib
import os
from collections.abc import Callable

# Preallocated memory is one piece, so nothing is fragmented. A step has the GPU to itself.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true"
os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.95"

import jax
from harness import apart, gpu, main
from steps import Peer, bert_peer, bert_rows, gpt_peer, gpt_rows, our_step, peer_step

from transformer_jax import losses
from transformer_jax.training.step import Program

REMATS = ("none", "dots", "full")
OUT_OF_MEMORY = ("out of memory", "resource_exhausted", "alloc_failed")


@dataclasses.dataclass(frozen=True)
class Model:
    """A model: `family` is a function of peers.py, `sizes` are arguments of steps.py's rows."""

    family: str
    sizes: dict[str, int]

    def rows(self, rows: int) -> tuple[Callable, dict[str, int]]:
        """Returns the function of steps.py that makes so many rows, and its arguments."""
        rows_of = {"gpt": gpt_rows, "bert": bert_rows}[self.family]
        return rows_of, self.sizes | {"rows": rows}

    def our_step(self, rows: int, remat: str) -> Callable[[], None]:
        # With the layers inline, XLA would merge the recomputed values with the first ones.
        return our_step(*self.rows(rows), unroll=1, remat=remat)

    def peer_step(self, rows: int, way: str) -> Callable[[], None]:
        peer_sizes = {"gpt": gpt_peer, "bert": bert_peer}[self.family]
        return peer_step(*self.rows(rows), Peer(self.family, peer_sizes(self.sizes)), way)


SMALL = Model("gpt", dict(length=256, layers=4, width=512, vocab_size=8192))
# Both sides pad GPT-2's vocabulary to 50,304.
GPT2_124M = Model("gpt", dict(length=1024, layers=12, width=768, vocab_size=50_304))
BERT_LARGE = Model("bert", dict(length=512, layers=24, width=1024, masked=80, predicted=80))


def largest(tiny: bool, name: str, model: Model, common: int):
    """Yields our rows that fit without and with full rematerialisation, against torch's."""
    if not gpu():
        cpu_cases = ", ".join(f"--case={case}" for case in CPU)
        raise SystemExit(f"{name} needs a GPU; the cases for a CPU: {cpu_cases}")
    length = model.sizes["length"]
    peer = "torch eager, flash"
    ways = {
        "ours, remat none": (our_peak, "none"),
        "ours, remat full": (our_peak, "full"),
        peer: (peer_peak, peer),
    }

    @functools.cache
    def peak(way: str, rows: int):
        function, option = ways[way]
        return apart(or_none, function, model, rows, option)

    fit = {way: largest_batch(functools.partial(peak, way), 2 if tiny else common) for way in ways}
    for way in [*ways][:-1]:
        yield {
            "case": f"{name}, rows of {length} that fit, {way}",
            "ours": fit[way],
            "unit": "rows",
            "peer": fit[peer],
            "peer_name": peer,
            "ratio": fit[way] / max(fit[peer], 1),
        }
        # None where the common batch does not fit.
        if peak(way, common) and peak(peer, common):
            our_bytes = peak(way, common)[0]
            peer_bytes = peak(peer, common)[0]
            yield {
                "case": f"{name}, {common} rows of {length}, {way}",
                "ours": our_bytes / 1e6,
                "unit": "MB",
                "peer": peer_bytes / 1e6,
                "peer_name": peer,
                "ratio": peer_bytes / our_bytes,
            }


def largest_batch(peak: Callable[[int], tuple[int, int] | None], rows: int) -> int:
    """Returns the largest number of rows that fits, to a sixteenth; 0 if no row fits.

    `peak` returns (bytes that so many rows take, bytes available), or None if they do not fit. The
    bytes grow linearly with the rows, so the search begins at an extrapolation from `rows` and half
    as many.
    """
    while rows and not peak(rows):
        rows //= 2
    if rows < 2:
        return rows
    used, available = peak(rows)
    used_by_half, _ = peak(rows // 2)
    bytes_per_row = (used - used_by_half) / (rows - rows // 2)
    rows = rows + int((available - used) / max(bytes_per_row, 1))
    step = max(rows // 16, 1)
    if peak(rows):
        while peak(rows + step):
            rows += step
        return rows
    while rows > step and not peak(rows):
        rows -= step
    return rows


def or_none(function: Callable, *arguments) -> tuple[int, int] | None:
    """Returns the function's result, or None if it ran out of memory."""
    try:
        return function(*arguments)
    # JAX and torch both raise it.
    except RuntimeError as error:
        if any(words in str(error).lower() for words in OUT_OF_MEMORY):
            return None
        raise


def our_peak(model: Model, rows: int, remat: str) -> tuple[int, int]:
    """Returns the GPU's peak bytes in two updates, and the bytes that JAX has."""
    step = model.our_step(rows, remat)
    step()
    step()
    stats = jax.devices()[0].memory_stats()
    return stats["peak_bytes_in_use"], stats["bytes_limit"]


def peer_peak(model: Model, rows: int, way: str) -> tuple[int, int]:
    """Returns torch's peak bytes in two updates, and the GPU's bytes.

    The first update makes the optimizer's state.
    """
    import peers

    step = model.peer_step(rows, way)
    step()
    step()
    return peers.torch.cuda.max_memory_allocated(), peers.torch.cuda.mem_get_info()[1]


def rematerialised(tiny: bool):
    for rows in (2, 4) if tiny else (8, 16, 32):
        without, *others = (apart(compiled_bytes, rows, remat, False) for remat in REMATS)
        for remat, size in zip(REMATS[1:], others):
            yield {
                "case": f"{_small(rows)}, remat {remat}",
                "ours": size / 1e6,
                "unit": "MB",
                "peer": without / 1e6,
                "peer_name": "none",
                "ratio": without / size,
            }


def logits(tiny: bool):
    for rows in (2, 4) if tiny else (8, 16, 32):
        # With full rematerialisation, the layers keep little compared with the logits.
        in_chunks = apart(compiled_bytes, rows, "full", False)
        at_once = apart(compiled_bytes, rows, "full", True)
        yield {
            "case": f"{_small(rows)}, remat full, logits in chunks",
            "ours": in_chunks / 1e6,
            "unit": "MB",
            "peer": at_once / 1e6,
            "peer_name": "all logits at once",
            "ratio": at_once / in_chunks,
        }


def compiled_bytes(rows: int, remat: str, whole_logits: bool) -> int:
    """Returns the bytes of arguments and temporaries of the small GPT's step.

    Results that are written over the arguments count once.
    """
    if whole_logits:
        losses.CHUNK_BYTES["cpu"] = 2**62
    rows_of, sizes = SMALL.rows(rows)
    task, *_ = rows_of(**sizes, unroll=1, remat=remat)
    program = Program.of(task.config, task, jax.devices()[:1])
    analysis = program.train_step.lower(program.state, program.batch).compile().memory_analysis()
    return (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        - analysis.alias_size_in_bytes
        + analysis.temp_size_in_bytes
    )


def resident(tiny: bool):
    # The system's malloc returns freed memory, so resident memory is memory in use.
    os.environ["GLIBC_TUNABLES"] = ""
    for rows in (2, 4) if tiny else (8, 16, 32):
        peer_bytes = apart(growth, rows, None)
        for remat in REMATS:
            our_bytes = apart(growth, rows, remat)
            yield {
                "case": f"{_small(rows)}, resident, remat {remat}",
                "ours": our_bytes / 1e6,
                "unit": "MB",
                "peer": peer_bytes / 1e6,
                "peer_name": "torch eager",
                "ratio": peer_bytes / our_bytes,
            }


def growth(rows: int, remat: str | None) -> int:
    """Returns the peak bytes of this process in updates 3 and 4, less those before the model.

    By then everything is compiled. With remat=None, torch trains.
    """
    if remat is None:
        importlib.import_module("peers")  # importing torch is not part of the model's memory
    jax.devices()
    bytes_before = _status("VmRSS")
    step = SMALL.peer_step(rows, "torch eager") if remat is None else SMALL.our_step(rows, remat)
    step()
    step()
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")  # resets the peak
    step()
    step()
    return _status("VmHWM") - bytes_before


def _status(field: str) -> int:
    """Returns a size of this process in bytes.

    getrusage's peak would not do: a process inherits it from its parent.
    """
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _small(rows: int) -> str:
    sizes = SMALL.sizes
    return f"GPT, {sizes['layers']} layers of {sizes['width']}, {rows} rows of {sizes['length']}"


CPU = {"rematerialised": rematerialised, "logits": logits, "resident": resident}
GPU = {
    "gpt2_124m": functools.partial(largest, name="GPT-2 124M", model=GPT2_124M, common=16),
    "bert_large": functools.partial(largest, name="BERT-large", model=BERT_LARGE, common=16),
}

if __name__ == "__main__":
    main(__doc__, CPU | GPU, ("jax", "flax"), GPU if apart(jax.default_backend) == "gpu" else CPU)
