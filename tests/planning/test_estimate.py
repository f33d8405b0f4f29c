"""The predicted memory is that of the compiled program. Advice follows if it does not fit.

Initialisation holds no whole model on a device.
"""

import dataclasses
import math

import jax
import pytest
from ml_collections import FrozenConfigDict

from tests.programs import call
from transformer_jax import config as configs
from transformer_jax import hardware
from transformer_jax.planning import estimate, topology, verdict
from transformer_jax.runs.spec import make_task
from transformer_jax.training.step import Program

TINY = {
    "encoder_decoder": (
        "configs/wmt/base.py",
        {
            "model.vocab_size": 512,
            "model.d_model": 64,
            "model.d_ff": 128,
            "model.num_heads": 4,
            "model.num_encoder_layers": 2,
            "model.num_decoder_layers": 2,
        },
    ),
    "gpt": (
        "configs/gpt/gpt2.py:124m",
        {
            "model.vocab_size": 512,
            "model.d_model": 64,
            "model.num_layers": 2,
            "model.num_heads": 4,
            "model.max_length": 128,
            "task.length": 64,
        },
    ),
    "bert": (
        "configs/bert/base.py",
        {"model.vocab_size": 512, "model.d_model": 64, "model.num_layers": 2, "model.num_heads": 4},
    ),
}
SMALL = hardware.Chip("small chip", 1e12, 1e6, 1e9, 1e9)


def program_of(name, **overrides):
    path, tiny = TINY[name]
    changes = {**tiny, "train.batch": 16}
    changes |= {key.replace("__", "."): value for key, value in overrides.items()}
    config = configs.load(path, [(key, str(value)) for key, value in changes.items()])
    task = make_task(config)
    return config, task, Program.of(config, task)


@pytest.fixture(scope="module")
def gpt():
    """A tiny GPT compiled for 8 virtual devices of an unknown chip."""
    inputs = program_of("gpt", mesh__data=4, mesh__tensor=2)
    return *inputs, estimate.estimate(*inputs)


@pytest.mark.full
@pytest.mark.parametrize(
    "name, mesh", [("bert", {"mesh__fsdp": 2, "mesh__tensor": 2, "train__accumulation": 2})]
)
def test_predicted_arguments_are_the_compiled_programs(name, mesh):
    inputs = program_of(name, **mesh)
    measured = estimate.estimate(*inputs)
    assert sum(measured.consumers.values()) == pytest.approx(measured.arguments, rel=0.01)
    assert measured.consumers["optimizer state"] == pytest.approx(
        2 * measured.consumers["parameters"], rel=0.01
    )
    # fsdp gathers the split parameters
    assert measured.collectives["all-gather"]["bytes"] > measured.consumers["parameters"]


@pytest.mark.full
def test_an_unknown_chip_has_no_roofline(gpt):
    *inputs, measured = gpt
    assert measured.chip is measured.fits is measured.roofline is measured.mfu is None
    assert sum(measured.consumers.values()) == pytest.approx(measured.arguments, rel=0.01)
    assert "not known" in verdict.lines(*inputs, measured)[0]


def on_chip(measured, chip):
    """Returns the estimate with `chip` and a roofline."""
    return dataclasses.replace(measured, chip=chip, roofline=estimate.Roofline(0.25, 0.5, 0.125))


def test_advice_where_a_program_does_not_fit(gpt):
    """The config of a run is frozen."""
    config, *inputs, measured = gpt
    inputs = [FrozenConfigDict(config), *inputs]
    text = "\n".join(verdict.lines(*inputs, on_chip(measured, SMALL)))
    assert "it does not fit" in text and "temporaries" in text and "small chip has 0.0 GB" in text
    assert "--config.mesh.data=1 --config.mesh.fsdp=4: parameters and optimizer state" in text
    assert (
        "--config.train.accumulation=4" in text
        and "--config.model.remat=full" in text
        and "more chips" not in text
    )
    smaller_chip = verdict.lines(*inputs, on_chip(measured, dataclasses.replace(SMALL, memory=1e3)))
    assert "more chips: parameters and optimizer state alone" in "\n".join(smaller_chip[:8])


def test_the_roofline_of_a_program_that_fits(gpt):
    *inputs, measured = gpt
    fits = on_chip(measured, dataclasses.replace(SMALL, memory=1e12))
    assert fits.fits and fits.roofline.bound == "memory" and fits.roofline.step_s == 0.5
    assert fits.mfu == pytest.approx(fits.flops / (8 * 1e12 * 0.5))
    assert "bound by memory" in "\n".join(verdict.lines(*inputs, fits))


@pytest.mark.full
def test_full_rematerialisation_costs_the_layers_forward_pass_again():
    for name in TINY:
        seconds = {
            remat: estimate.compute_seconds(config, task, SMALL, 8)
            for remat in ("none", "full")
            for config, task, _ in [program_of(name, model__remat=remat)]
        }
        assert 1 < seconds["full"] / seconds["none"] < 4 / 3


def test_a_product_that_triton_can_not_tile_is_compiled_without_it():
    """Without a GPU, the compiler takes a tiling that it has not measured."""
    asked = []

    class Lowered:
        def compile(self, options=None):
            asked.append(options)
            if options is None:
                raise jax.errors.JaxRuntimeError(f"INTERNAL: {message} that satisfy hlo: %dot")
            return "compiled"

    message = "Couldn't find output tile sizes"
    assert estimate.compile_lowered(Lowered(), "gpu") == "compiled"
    assert asked == [None, {"xla_gpu_enable_triton_gemm": False}]
    message = "Another"
    with pytest.raises(jax.errors.JaxRuntimeError, match="Another"):
        estimate.compile_lowered(Lowered(), "gpu")


def test_a_refusal_is_read():
    with_temporaries = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (49.00G) exceeds available HBM (15.75G)."
    )
    with_total = (
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 61.5G of 15.75G hbm. "
        "Exceeded hbm capacity by 45.75G.\n\nTotal hbm usage >= 61.7G:"
    )
    assert estimate.refused_temporaries(with_temporaries, 10**9) == 49 * 2**30
    assert estimate.refused_temporaries(with_total, 2**30) == int(60.5 * 2**30)
    with_allocation = (
        "RESOURCE_EXHAUSTED: Allocation (size=243108151296) would exceed memory (size=17179869184)"
    )
    assert estimate.refused_temporaries(with_allocation, 2**30) == 243_108_151_296
    assert estimate.refused_temporaries("RESOURCE_EXHAUSTED: other words", 0) is None


@pytest.mark.sample("gpt")
@pytest.mark.parametrize("name", ["encoder_decoder", "gpt", "bert"])
def test_no_device_holds_the_whole_model_at_initialisation(name):
    config, task, program = program_of(
        name,
        mesh__fsdp=8,
        model__d_model=512,
        **({"model__d_ff": 2048} if name == "encoder_decoder" else {}),
    )
    memory = program.init.lower(jax.random.key(0)).compile().memory_analysis()
    num_bytes = sum(
        math.prod(leaf.shape) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(program.state.params)
    )
    assert memory.output_size_in_bytes == pytest.approx(
        estimate.bytes_per_device(program.state), rel=0.01
    )
    # parameters and two moments
    assert memory.output_size_in_bytes == pytest.approx(3 * num_bytes / 8, rel=0.05)
    assert memory.temp_size_in_bytes < num_bytes / 3


def test_tiles_of_a_tpu():
    tiled = estimate._tiled
    # the long axis innermost
    assert tiled((768, 3072)) == 768 * 3072 and tiled((3072, 192)) == 3072 * 192
    assert (
        tiled((192, 12, 64)) == 256 * 12 * 64
        and tiled((2, 100)) == 2 * 128
        and tiled(()) == tiled((5,)) == 128
    )


def test_chips_by_the_names_jax_gives_them():
    assert (
        hardware.of("TPU v5 lite") is hardware.V5E
        and hardware.of("NVIDIA H200") is hardware.H200
        and hardware.of("cpu") is None
    )


@pytest.mark.parametrize(
    "name, says",
    [
        ("v9:2x2", "no chip 'v9'; there are: v4, v5e, v5p, v6e"),
        ("v5e:4x4x4", "is AxB"),
        ("v5p:4x4", "is AxBxC"),
        ("v5e:4xb", "is AxB"),
        ("v5e", "is AxB"),
    ],
)
def test_unknown_slices(name, says):
    with pytest.raises(configs.UserError, match=f"--topology={name}: .*{says}"):
        topology.prepare(name)


def test_a_mistake_is_one_line_and_exit_code_2():
    done = call("dry_run", "--config=configs/gpt/gpt2.py:124m", "--topology=v9:2x2")
    assert (
        done.returncode == 2
        and done.stderr.startswith("error: --topology=v9:2x2: no chip 'v9'")
        and len(done.stderr.splitlines()) == 1
    )


def test_without_the_tpu_compiler_one_line_says_so(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        configs.UserError, match=r"needs the TPU compiler, libtpu: pip install 'jax\[tpu\]=="
    ):
        topology.prepare("v5e:4x4")
