"""The training programs for an H100 and a TPU v5e are the programs that are meant.

They need XLA's compilers for both, and minutes: launch/test.sh --hardware.
"""

import collections
import functools
import importlib.util
import math
import os
import re

import pytest

from transformer_jax import config as configs
from transformer_jax.distributed import sharding
from transformer_jax.planning import estimate, hlo, topology
from transformer_jax.runs.spec import make_task
from transformer_jax.training.step import Program

pytestmark = pytest.mark.hardware
GPU, TPU = "h100:8", "v5e:2x4"
IS_INSTALLED = {
    GPU: topology.installed_plugin() is not None,
    TPU: importlib.util.find_spec("libtpu") is not None,
}
# By topology: the calls of fused attention, forward and backward.
FUSED = {GPU: (r"__cudnn\$fmha\w*Softmax", r"__cudnn\$fmha\w*Backward"), TPU: ("tpu_custom_call",)}
# The calls of attention with dropout on its weights.
DROPPED = {GPU: "__gpu$xla.gpu.triton", TPU: "tpu_custom_call"}
NO_DROPOUT = ("model.dropout=0.0", "model.attention_dropout=0.0")
TWO_LAYERS = "model.num_layers=2"
GPT = ("configs/gpt/gpt2.py:124m", TWO_LAYERS, "train.batch=32", *NO_DROPOUT)
BERT = ("configs/bert/base.py", TWO_LAYERS, "train.batch=32", *NO_DROPOUT)
VIT = (
    "configs/vit/vit.py:b16",
    TWO_LAYERS,
    "train.batch=128",
    "model.dtype=bfloat16",
    "task.labels=('cat','dog')",
)
BIG = (
    "configs/wmt/big.py:en-de",
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "train.batch=32",
    "model.dropout=0.0",
)
T5 = (
    "configs/t5/v1_1.py:base",
    "model.num_encoder_layers=1",
    "model.num_decoder_layers=1",
    "train.batch=32",
    "model.dtype=bfloat16",
    "model.remat=none",
)
PIPELINE = (
    "mesh.pipeline=2",
    "mesh.tensor=4",
    "mesh.data=1",
    "train.accumulation=2",
    "model.num_encoder_layers=2",
    "model.num_decoder_layers=2",
)


def skip_without_compiler(name: str) -> None:
    if not IS_INSTALLED[name.rpartition("*")[2]]:
        pytest.skip(f"the compiler for {name} is not installed")


@functools.cache
def program(name: str, config: str, *overrides: str):
    """Returns the config, the task and the program of a training on a topology."""
    skip_without_compiler(name)
    before = dict(os.environ)
    topology.prepare(name)
    devices = topology.devices(name)
    os.environ.clear()
    os.environ.update(before)
    loaded = configs.load(config, dict(override.split("=", 1) for override in overrides))
    task = make_task(loaded)
    return loaded, task, Program.of(loaded, task, devices)


@functools.cache
def compiled(name: str, config: str, *overrides: str):
    _, _, made = program(name, config, *overrides)
    with estimate.lowering(made.mesh):
        lowered = made.train_step.lower(made.state, made.batch)
    return estimate.compile_lowered(lowered, "gpu" if name == GPU else "tpu")


@functools.cache
def text(name: str, config: str, *overrides: str) -> str:
    return compiled(name, config, *overrides).as_text()


def all_reduces(name: str, config: str, *overrides: str) -> dict[str, int]:
    """Returns the number and the bytes of all-reduces, but for sums of a few numbers."""
    sent = hlo.collectives(text(name, config, *overrides), 8)
    return hlo.summary([each for each in sent if each.bytes > 1000])["all-reduce"]


def calls(program_text: str) -> collections.Counter:
    return collections.Counter(re.findall(r'custom_call_target="([^"]+)"', program_text))


@pytest.mark.parametrize("name", [GPU, TPU])
@pytest.mark.parametrize(
    "config, count", [(GPT, 1), (BERT, 1), (BIG, 3)], ids=["gpt2", "bert", "transformer-big"]
)
def test_attention_is_fused(config, count, name):
    """Each kind of attention has its own call, once for all layers of a stack."""
    targets = calls(text(name, *config))
    for pattern in FUSED[name]:
        counts = [number for target, number in targets.items() if re.fullmatch(pattern, target)]
        assert sum(counts) >= count, targets


def test_attention_to_an_odd_number_of_patches_is_fused():
    """JAX refuses odd lengths in training, and Triton has no tiling for 128 rows of 197 patches."""
    targets = calls(text(GPU, *VIT))
    assert {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"} <= targets.keys()


def test_padding_reaches_cudnn_as_lengths():
    """Rows of one text need no array of bias (B, H, L, L), nor the gradient of one."""
    targets = calls(text(GPU, *BERT))
    assert {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"} <= targets.keys()
    assert not [target for target in targets if "Bias" in target]


@pytest.mark.parametrize(
    "mesh, rows, heads",
    [((), 4, 12), (("mesh.tensor=2", "mesh.data=4"), 8, 6), (PIPELINE, 16, 3)],
    ids=["data", "tensor", "pipeline"],
)
def test_a_learned_bias_reaches_cudnn(mesh, rows, heads):
    """T5's, in the encoder, the decoder, and as a mask between both, for the heads of a device."""
    program_text = text(GPU, *T5, *mesh)
    targets = calls(program_text)
    assert targets["__cudnn$fmhaScaleBiasSoftmax"] == 3
    assert targets["__cudnn$fmhaScaleBiasSoftmaxBackward"] == 3
    for line in program_text.splitlines():
        if "__cudnn$fmha" in line:
            assert re.search(rf"bf16\[{rows},{heads},(512|114),(512|114)\]", line), line


@pytest.mark.parametrize("name", [GPU, TPU])
@pytest.mark.parametrize("config", [GPT, BERT], ids=["gpt2", "bert"])
def test_dropout_of_attention_writes_no_scores(config, name):
    with_dropout = [*config[:-2], "model.attention_dropout=0.1"]
    loaded, _, _ = program(name, *with_dropout)
    program_text = text(name, *with_dropout)
    assert calls(program_text)[DROPPED[name]] >= 3  # forward, and backward to queries and to keys
    scores = re.compile(rf"\b{loaded.model.num_heads},(\d{{3,}}),\1\]")
    assert not scores.search(program_text)


def dots(program_text: str):
    """Yields the shapes (dtype, sizes) of the result and the operands of each product."""
    shapes = {}
    for line in program_text.splitlines():
        if header := re.match(r"^%?[\w.\-]+ \((.*)\) -> ", line):
            shapes = dict(re.findall(r"([\w.\-]+): (\w+\[[\d,]*\])", header[1]))
        if made := re.match(r"^\s+(?:ROOT )?%([\w.\-]+) = (\w+\[[\d,]*\])", line):
            shapes[made[1]] = made[2]
        if dot := re.search(r" = (\w+\[[\d,]*\])\S* dot\(%([\w.\-]+), %([\w.\-]+)\)", line):
            yield dot[1], shapes[dot[2]], shapes[dot[3]]


def size(shape: str) -> int:
    return math.prod(int(n) for n in re.search(r"\[([\d,]*)\]", shape)[1].split(",") if n)


@pytest.mark.parametrize("config", [GPT, BERT], ids=["gpt2", "bert"])
def test_products_are_bfloat16(config):
    products = [shapes for shapes in dots(text(GPU, *config)) if size(shapes[0]) > 2**16]
    assert products
    for _, *operands in products:
        assert all(operand.startswith("bf16") for operand in operands), operands


@pytest.mark.parametrize("name", [GPU, TPU])
def test_no_array_holds_all_logits(name):
    """The logits of a device fill several chunks (losses.CHUNK_BYTES)."""
    case = (*GPT, "train.batch=128")
    loaded, task, _ = program(name, *case)
    logits = loaded.train.batch // 8 * loaded.task.length * task.model.vocab_size
    largest = max(map(size, re.findall(r"\b\w+\[[\d,]+\]", text(name, *case))))
    assert largest < logits / 2


def moved(kernels) -> float:
    return sum(kernel.count * kernel.bytes for kernel in kernels)


def test_the_loss_passes_six_times_over_its_logits():
    """In bfloat16: written, read once for all sums, and read again for their gradient.

    The gradient is written, and read by two products. The rest are hidden states and the table.
    """
    case = (*GPT, "train.batch=128", "model.dtype=bfloat16")
    loaded, task, _ = program(GPU, *case)
    logits = 2 * loaded.train.batch // 8 * loaded.task.length * task.model.vocab_size
    kernels = hlo.kernels(text(GPU, *case))
    # What lies in no module is the loss, and the output projection.
    assert 6 < moved(each for each in kernels if "jvp()" in each.source) / logits < 7.5


def test_the_optimizer_passes_once_over_the_state():
    """It reads and writes parameters and moments, and reads gradients, for their norm as well.

    The norm of the new parameters reads them again, and on several devices, the sum of the
    gradients passes over them. A second pass over the state takes 4 more.
    """
    case = (*GPT, "model.dtype=bfloat16")
    parameters = program(GPU, *case)[1].parameter_counts()["params"]
    kernels = hlo.kernels(text(GPU, *case))
    update = [each for each in kernels if "jvp" not in each.source]
    assert 8 < moved(update) / (4 * parameters) < 14


@pytest.mark.parametrize("name", [GPU, TPU])
def test_gradients_cross_the_network_once_an_update(name):
    """The number and the bytes of all-reduces do not depend on the microbatches."""
    one, four = all_reduces(name, *GPT), all_reduces(name, *GPT, "train.accumulation=4")
    assert four["count"] <= one["count"] and four["bytes"] == pytest.approx(one["bytes"], rel=0.01)


@pytest.mark.parametrize("name", [GPU, TPU])
def test_the_state_is_updated_in_place(name):
    _, _, made = program(name, *GPT)
    memory = compiled(name, *GPT).memory_analysis()
    state = estimate.bytes_per_device((made.state.params, made.state.opt_state))
    assert memory.alias_size_in_bytes >= 0.99 * state


@pytest.mark.parametrize("name", [GPU, TPU])
def test_rematerialisation_saves_memory(name):
    """With full rematerialisation, the memory of activations is that of a layer."""
    sizes = {
        remat: compiled(name, *GPT, f"model.remat={remat}").memory_analysis().temp_size_in_bytes
        for remat in ("none", "full")
    }
    assert sizes["full"] < 0.9 * sizes["none"]


@functools.cache
def decoding_texts(name: str, config: str, *overrides: str) -> list[str]:
    """Returns the programs that write texts during an evaluation."""
    _, task, made = program(name, config, *overrides)
    with sharding.use(made.mesh, made.table), estimate.lowering(made.mesh):
        programs = task.evaluation_programs(made.state.params)
        lowered = [each.lowered for each in programs.values()]
        platform = "gpu" if name == GPU else "tpu"
        return [estimate.compile_lowered(each, platform).as_text() for each in lowered]


def made_in_loops(program_text: str):
    """Yields for each loop the shapes that it carries, and (operation, shape) of what it makes."""
    for body in set(re.findall(r"body=%([\w.\-]+)", program_text)):
        lines = program_text.split(f"\n%{body} (", 1)[1].split("\n}", 1)[0].splitlines()
        made = (re.match(r"\s+%([\w.\-]+) = (\w+\[[\d,]*\])\S* ([\w\-]+)\(", x) for x in lines)
        yield (
            re.findall(r"\w+\[[\d,]*\]", lines[0].split(" -> ")[0]),
            [(f"{each[3]} {each[1]}", each[2]) for each in made if each],
        )


@pytest.mark.parametrize("name", [GPU, TPU])
@pytest.mark.parametrize(
    "config", [(*GPT, "task.sample_tokens=64"), BIG], ids=["gpt2", "transformer-big"]
)
def test_decoding_copies_no_cache(config, name):
    """A loop over tokens makes no array of a cache's size, except by updates in place."""
    in_place = re.compile("get-tuple-element|bitcast|dynamic.update.slice|scatter")
    loops = [loop for each in decoding_texts(name, *config) for loop in made_in_loops(each)]
    assert loops
    for carried, made in loops:
        # (B, H, _, _): keys and values have four dimensions, and no other array of bfloat16.
        caches = {size(shape) for shape in carried if re.fullmatch(r"bf16\[(\d+,){3}\d+\]", shape)}
        assert caches
        copies = [
            (operation, shape)
            for operation, shape in made
            if shape.startswith("bf16") and size(shape) in caches and not in_place.search(operation)
        ]
        assert not copies


def test_gradients_are_reduced_within_a_slice_first():
    """Two slices of eight chips: each chip sends an eighth of the gradients to the other slice."""
    name, case = f"2*{TPU}", (*GPT, "train.batch=64", "mesh.slices=2")
    _, _, made = program(name, *case)
    gradients = estimate.bytes_per_device(made.state.params)
    found = hlo.collectives(text(name, *case), 16)
    sent = sum(each.count * each.moved_between_hosts for each in found)
    # Within the tiles that a TPU pads arrays to.
    assert gradients / 8 <= sent < 1.3 * gradients / 8


@pytest.mark.parametrize("name", [GPU, TPU])
def test_experts_send_positions_and_gradients_alone(name):
    """Chips exchange the positions of their rows, and gather neither rows nor parameters."""
    sizes = ("model.d_model=1024", "model.d_ff=2048", "model.num_layers=1", "model.vocab_size=1024")
    mesh = ("mesh.expert=8", "mesh.data=1", "train.batch=16", "task.length=1024")
    case = ("configs/decoder/mixtral.py", *sizes, *mesh)
    found = hlo.summary(hlo.collectives(text(name, *case), 8))
    assert {*found} == {"all-to-all", "all-reduce"}
