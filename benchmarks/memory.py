"""What a training step holds: the largest batch that fits a GPU; on a CPU, which has no such limit,
bytes at equal batches.

python benchmarks/memory.py [--json=FILE] [--case=gpt2_124m] [--case=rematerialised] [--case=logits] [--case=resident] [--tiny]

`gpt2_124m`, `bert_large` (GPU): rows that fit, to a sixteenth, and the peak at a common batch; ours
without and with full rematerialisation, torch eager with flash attention. `rematerialised`,
`logits` (CPU): what the compiler allots to a step, with each rematerialisation, and with the logits
in chunks against all of them at once. `resident` (CPU): by how much a process grows that trains,
beside torch's (benchmarks/peers.py says how to get it). Each figure comes from a process of its
own.
"""

import functools
import importlib
import os
from collections.abc import Callable

# what is one piece can't be fragmented; and a step has the GPU to itself
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true"
os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.95"

import jax
from harness import apart, gpu, main
from train_step import bert_rows, gpt_rows, our_step, their_step

from transformer_jax import losses
from transformer_jax.training.program import Program

SMALL = "gpt", (256, 4, 512, 8192)  # length, layers, width, vocabulary
REMATS = ("none", "dots", "full")


def largest(tiny: bool, name: str, kind: str, shape: tuple, common: int):
    """Our rows that fit without and with full rematerialisation, against torch's."""
    if not gpu():
        raise SystemExit(
            f"what fits is asked of a GPU, and this machine has none; here: {', '.join(f'--case={case}' for case in CPU)}"
        )
    ways = {f"ours, remat {remat}": (ours_holds, remat) for remat in ("none", "full")} | {
        "torch eager, flash": (theirs_hold, "torch eager, flash")
    }
    peak = functools.cache(
        lambda way, rows: apart(held, ways[way][0], kind, shape, rows, ways[way][1])
    )
    fit = {way: most(functools.partial(peak, way), 2 if tiny else common) for way in ways}
    *ours, theirs = ways
    for way in ours:
        yield {
            "case": f"{name}, rows of {shape[0]} that fit, {way}",
            "ours": fit[way],
            "unit": "rows",
            "peer": fit[theirs],
            "peer_name": theirs,
            "ratio": fit[way] / max(fit[theirs], 1),
        }
        if peak(way, common) and peak(theirs, common):  # else the common batch does not fit
            used, other = (peak(side, common)[0] / 1e6 for side in (way, theirs))
            yield {
                "case": f"{name}, {common} rows of {shape[0]}, {way}",
                "ours": used,
                "unit": "MB",
                "peer": other,
                "peer_name": theirs,
                "ratio": other / used,
            }


def most(peak: Callable[[int], tuple[int, int] | None], rows: int) -> int:
    """The most rows that fit, to a sixteenth; 0 where not one does. `peak`: (bytes that so many
    rows take, bytes there are), None where they do not fit.

    Bytes grow by the row: a guess from the peaks of `rows` and of half as many is looked for
    upwards or downwards.
    """
    while rows and not peak(rows):
        rows //= 2
    if rows < 2:
        return rows
    (used, there), (half, _) = peak(rows), peak(rows // 2)
    rows = rows + int((there - used) / max((used - half) / (rows - rows // 2), 1))
    step = max(rows // 16, 1)
    if peak(rows):
        while peak(rows + step):
            rows += step
        return rows
    while rows > step and not peak(rows):
        rows -= step
    return rows


def held(holds: Callable, *arguments) -> tuple[int, int] | None:
    """Peak bytes and those there are, None where the former were more."""
    try:
        return holds(*arguments)
    except RuntimeError as error:  # both JAX's and torch's
        if any(
            words in str(error).lower()
            for words in ("out of memory", "resource_exhausted", "alloc_failed")
        ):
            return None
        raise


def ours_holds(kind: str, shape: tuple, rows: int, remat: str) -> tuple[int, int]:
    """The GPU's peak in two updates, and what JAX has of it."""
    step = our_step(_rows, (kind, shape, rows), remat=remat)
    step(), step()
    found = jax.devices()[0].memory_stats()
    return found["peak_bytes_in_use"], found["bytes_limit"]


def theirs_hold(kind: str, shape: tuple, rows: int, way: str) -> tuple[int, int]:
    """Torch's peak in two updates, the first of which makes the optimizer's state; and what there
    is.
    """
    import peers

    step = _their_step(kind, shape, rows, way)
    step(), step()
    return peers.torch.cuda.max_memory_allocated(), peers.torch.cuda.mem_get_info()[1]


def rematerialised(tiny: bool):
    for rows in (2, 4) if tiny else (8, 16, 32):
        whole, *less = (apart(compiled_bytes, rows, remat, False) for remat in REMATS)
        for remat, found in zip(REMATS[1:], less):
            yield {
                "case": f"{_small(rows)}, remat {remat}",
                "ours": found / 1e6,
                "unit": "MB",
                "peer": whole / 1e6,
                "peer_name": "none",
                "ratio": whole / found,
            }


def logits(tiny: bool):
    for rows in (2, 4) if tiny else (8, 16, 32):
        # where the layers keep little
        chunked, whole = (apart(compiled_bytes, rows, "full", at_once) for at_once in (False, True))
        yield {
            "case": f"{_small(rows)}, remat full, logits in chunks",
            "ours": chunked / 1e6,
            "unit": "MB",
            "peer": whole / 1e6,
            "peer_name": "all logits at once",
            "ratio": whole / chunked,
        }


def compiled_bytes(rows: int, remat: str, whole_logits: bool) -> int:
    """Arguments and temporaries of the small GPT's step; what is written over the arguments counts
    once.
    """
    if whole_logits:
        losses.CHUNK_LOGITS["cpu"] = 2**62
    task, *_ = _rows(*SMALL, rows, remat=remat)
    program = Program.of(task.config, task, jax.devices()[:1])
    found = program.train_step.lower(program.state, program.batch).compile().memory_analysis()
    return (
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        - found.alias_size_in_bytes
        + found.temp_size_in_bytes
    )


def resident(tiny: bool):
    # plain malloc gives back what is freed: what is resident is held
    os.environ["GLIBC_TUNABLES"] = ""
    for rows in (2, 4) if tiny else (8, 16, 32):
        theirs = apart(grown, rows, None)
        for remat in REMATS:
            ours = apart(grown, rows, remat)
            yield {
                "case": f"{_small(rows)}, resident, remat {remat}",
                "ours": ours / 1e6,
                "unit": "MB",
                "peer": theirs / 1e6,
                "peer_name": "torch eager",
                "ratio": theirs / ours,
            }


def grown(rows: int, remat: str | None) -> int:
    """Peak bytes of the process in its third and fourth update (compiling is over) beyond those
    before it knew a model; remat None: torch.
    """
    if remat is None:
        importlib.import_module("peers")  # what importing takes is no model's
    jax.devices()
    before = _status("VmRSS")
    step = (
        _their_step(*SMALL, rows, "torch eager")
        if remat is None
        else our_step(_rows, (*SMALL, rows), remat=remat)
    )
    step(), step()
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")  # the peak begins anew
    step(), step()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    """getrusage's peak would be that of the process that began this one, were it larger."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _rows(kind: str, shape: tuple, rows: int, **model):
    """(our task, its batch, the peer's batch). The layers stay in their loop: where they stand in
    line, XLA finds what is computed again equal to what was, and keeps it.
    """
    length, layers, width, vocab_size = shape
    if kind == "gpt":
        return gpt_rows(rows, length, layers, width, vocab_size, unroll=1, **model)
    return bert_rows(
        rows, length, length * 20 // 128, length * 20 // 128, layers, width, unroll=1, **model
    )


def _their_step(kind: str, shape: tuple, rows: int, way: str):
    length, layers, width, vocab_size = shape
    return their_step(
        _rows, (kind, shape, rows), kind, (vocab_size, width, layers, width // 64, length, 0.0), way
    )


def _small(rows: int) -> str:
    length, layers, width, _ = SMALL[1]
    return f"GPT, {layers} layers of {width}, {rows} rows of {length}"


CPU = {"rematerialised": rematerialised, "logits": logits, "resident": resident}
GPU = {
    "gpt2_124m": lambda tiny: largest(tiny, "GPT-2 124M", "gpt", (1024, 12, 768, 50_304), 16),
    "bert_large": lambda tiny: largest(tiny, "BERT-large", "bert", (512, 24, 1024, 30_522), 16),
}  # GPT-2's vocabulary as both pad it

if __name__ == "__main__":
    main(__doc__, CPU | GPU, ("jax", "flax"), GPU if apart(jax.default_backend) == "gpu" else CPU)
