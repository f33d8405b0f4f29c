"""Adds up the kernels of updates that are compiled for GPUs and TPUs. No GPU or TPU is needed.

python benchmarks/kernels.py [NAME ...] [--json=FILE] [--root=CHECKOUT] [--longest=N]
python benchmarks/kernels.py --table --json=FILE

Each kernel takes the longer of two times: its matrix products at the peak rate of the chip, and its
bytes at nine tenths of the memory's rate, which is 3 TB/s for an H100. Their sum says what a change
of the program gives before it can be measured; the update itself takes longer, because products and
attention reach two thirds and a quarter of the peak (docs/speed.md). `--root` compiles the package
of another checkout, such as that of the commit before, whose rows stand beside the others in the
table. `--longest` prints the longest kernels. A row is put into --json as soon as it is known.

It needs the compilers of the extras `tpu` and `gpu`. A case takes about a minute on a core.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import comparison

ROOT = pathlib.Path(__file__).parent.parent
COMMAND = "python benchmarks/kernels.py --json"
SUSTAINED = 0.9  # of the memory's rate

BF16 = {"model.dtype": "bfloat16", "train.accumulation": 1}
NO_DROPOUT = {"model.dropout": 0.0, "model.attention_dropout": 0.0}
GPT2 = BF16 | NO_DROPOUT
# The shape of Llama 3.2 1B.
LLAMA = {
    "model.d_model": 2048,
    "model.num_layers": 16,
    "model.num_heads": 32,
    "model.num_kv_heads": 8,
    "model.d_ff": 8192,
    "model.vocab_size": 128_256,
}
# Those of ImageNet-1k in number, because no data is read.
CLASSES = {"task.labels": tuple(map(str, range(1000)))}
MODELS = {
    "GPT-2 124M": ("gpt/gpt2.py:124m", GPT2 | {"model.unroll": 12, "train.batch": 32}),
    "GPT-2 124M, scanned": ("gpt/gpt2.py:124m", GPT2 | {"model.unroll": 1, "train.batch": 32}),
    "GPT-2 355M": ("gpt/gpt2.py:355m", GPT2 | {"train.batch": 16}),
    "Llama 3.2 1B": ("decoder/llama2.py:7b", BF16 | LLAMA | {"train.batch": 4}),
    "BERT large": ("bert/large.py", BF16 | {"train.batch": 32}),
    "Transformer big": ("wmt/big.py:en-de", BF16),
    "T5 base": ("t5/t5.py:base", BF16 | {"train.batch": 32}),
    "T5 v1.1 base": ("t5/v1_1.py:base", BF16 | {"train.batch": 32}),
    "ViT-B/16": ("vit/vit.py:b16", BF16 | CLASSES | {"train.batch": 128}),
}
TOPOLOGIES = {"h100:1": 1, "h100:8": 8, "v5e:2x4": 8}  # and the devices, each with such a batch
BEFORE = ", before"
CASES = {f"{model}, {topology}": (model, topology) for model in MODELS for topology in TOPOLOGIES}
ORDER = [name + time for name in CASES for time in (BEFORE, "")]


def main() -> None:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    flags.add_argument("--json", type=pathlib.Path)
    flags.add_argument("--root", type=pathlib.Path, default=ROOT)
    flags.add_argument("--longest", type=int, default=0)
    flags.add_argument("--table", action="store_true")
    flags.add_argument("--dump", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = flags.parse_args()
    if arguments.dump:
        return dump(*arguments.names, arguments.dump)
    if arguments.table:
        return print(table(json.loads(arguments.json.read_text())["rows"]))
    for name in arguments.names or CASES:
        row = measured(name, arguments.root.absolute(), arguments.longest)
        print(json.dumps(row), flush=True)
        if arguments.json:
            comparison.add_rows(arguments.json, [row], "objective", ORDER, COMMAND)


def measured(name: str, root: pathlib.Path, longest: int) -> dict:
    """Returns the row of a case, compiled with the package in `root`."""
    from transformer_jax import hardware
    from transformer_jax.planning import hlo

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "program"
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(root)}
        command = [sys.executable, __file__, name, "--dump", str(file)]
        subprocess.run(command, env=environment, cwd=root, check=True)
        found = hlo.kernels(file.with_suffix(".txt").read_text())
        memory = json.loads(file.with_suffix(".json").read_text())
    chip = hardware.NAMES[CASES[name][1].partition(":")[0]]

    def milliseconds(kernel) -> float:
        return 1e3 * kernel.seconds(chip.flops, SUSTAINED * chip.memory_bandwidth)

    # The kernels of all layers that stem from one operation are one line.
    lines = collections.defaultdict(list)
    for kernel in found:
        source = kernel.source.removeprefix("jit(train_step)/")
        lines[kernel.kind, source].append(kernel)
    ordered = sorted(lines.items(), key=lambda item: -sum(map(milliseconds, item[1])))
    for (kind, source), equal in ordered[:longest]:
        moved = sum(kernel.count * kernel.bytes for kernel in equal) / 1e9
        print(f"{sum(map(milliseconds, equal)):8.3f} ms {moved:7.2f} GB  {kind:10} {source}")
    kinds = collections.Counter()
    for kernel in found:
        known = kernel.kind in ("product", "attention")
        kinds[kernel.kind if known else "other"] += milliseconds(kernel)
    # What lies in no module of the model is the loss, with the output projection.
    head = [kernel for kernel in found if re.search(r"jvp\(\)", kernel.source)]
    return {
        "objective": name if root == ROOT else name + BEFORE,
        "revision": comparison.revision(root),
        "milliseconds": sum(kinds.values()),
        **kinds,
        "head_gb": sum(kernel.count * kernel.bytes for kernel in head) / 1e9,
        "head_milliseconds": sum(map(milliseconds, head)),
        "kernels": sum(kernel.count for kernel in found),
        "memory_gb": memory / 1e9,
    }


def dump(name: str, file: pathlib.Path) -> None:
    """Compiles a case, and writes the text of the program and the bytes that it takes."""
    from transformer_jax import config as configs
    from transformer_jax.planning import estimate, topology
    from transformer_jax.runs.spec import make_task
    from transformer_jax.training.step import Program

    model, name = CASES[name]
    config, keys = MODELS[model]
    topology.prepare(name)
    keys = {key: str(value) for key, value in keys.items()}
    loaded = configs.load(f"configs/{config}", keys)
    loaded.train.batch *= TOPOLOGIES[name]
    task = make_task(loaded)
    program = Program.of(loaded, task, topology.devices(name))
    platform = program.mesh.devices.flat[0].platform
    with estimate.lowering(program.mesh):
        lowered = program.train_step.lower(program.state, program.batch)
    compiled = estimate.compile_lowered(lowered, platform)
    file.with_suffix(".txt").write_text(compiled.as_text())
    memory = estimate.live_bytes(compiled.memory_analysis(), platform)
    file.with_suffix(".json").write_text(json.dumps(memory))


def table(rows: list[dict]) -> str:
    """Returns the rows as Markdown, those of one case beside each other."""
    header = [
        "update",
        "products",
        "attention",
        "other",
        "sum",
        "of which loss",
        "its bytes",
        "memory",
    ]
    by_case = collections.defaultdict(list)
    for row in rows:
        by_case[row["objective"].removesuffix(BEFORE)].append(row)

    def cell(rows, key, digits) -> str:
        return " → ".join(f"{row.get(key, 0):.{digits}f}" for row in rows)

    lines = [
        [
            case,
            *(cell(each, key, 1) for key in ("product", "attention", "other", "milliseconds")),
            cell(each, "head_milliseconds", 1),
            cell(each, "head_gb", 1) + " GB",
            cell(each, "memory_gb", 1) + " GB",
        ]
        for case, each in by_case.items()
    ]
    return comparison.markdown(header, lines)


if __name__ == "__main__":
    main()
