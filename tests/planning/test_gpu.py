"""The GPU compiler, where it is installed."""

import importlib.machinery
import json

import pytest

from tests.programs import call
from transformer_jax import config as configs
from transformer_jax import hardware
from transformer_jax.config import UserError
from transformer_jax.planning import estimate, topology
from transformer_jax.runs.spec import make_task
from transformer_jax.training.step import Program

GPT = [
    "--config=configs/gpt/gpt2.py:124m",
    "--config.model.num_layers=2",
    "--config.model.vocab_size=8192",
    "--config.model.max_length=256",
    "--config.task.length=256",
    "--config.train.batch=32",
]
hardware_test = pytest.mark.skipif(
    topology.installed_plugin() is None, reason="the GPU compiler is not installed"
)


@pytest.mark.parametrize(
    "name, says",
    [
        ("h100", "must be h100:G for a host of G GPUs, or h100:GxH for H hosts"),
        ("h100:0", "must be h100:G"),
        ("h100:8x8x8", "must be h100:G"),
        ("4090:2x4", "the network of hosts with 4090 is not known; use 4090:G"),
        ("h300:8", "no chip 'h300'; there are: v4, v5e, v5p, v6e, a100-40, a100-80, h100, h200"),
    ],
)
def test_unknown_hosts(name, says):
    with pytest.raises(UserError, match=f"--topology={name}: {says}"):
        topology.prepare(name)


def test_without_the_compiler_one_line_says_so(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    either = r"needs the GPU compiler: pip install 'jax\[cuda13\]==.*, or 'jax\[cuda12\]=="
    with pytest.raises(UserError, match=either):
        topology.prepare("h100:8")


@pytest.mark.parametrize("cuda", ["cuda12", "cuda13"])
def test_the_compiler_of_either_cuda_is_found(monkeypatch, tmp_path, cuda):
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: spec)
    spec = importlib.machinery.ModuleSpec("jax_plugins", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    assert topology.installed_plugin() is None
    (tmp_path / f"xla_{cuda}").mkdir()
    assert topology.installed_plugin() == f"xla_{cuda}"


def test_a_compiler_of_another_release_is_one_line(monkeypatch):
    """jax ignores the plugin of another release, and has no topologies of GPUs then."""
    from jax.experimental import topologies

    def ignored(*_, **__):
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(topology, "installed_plugin", lambda: "xla_cuda13")
    monkeypatch.setattr(topologies, "get_topology_desc", ignored)
    other = r"--topology=h100:8: jax ignores .*: pip install 'jax\[cuda13\]=="
    with pytest.raises(UserError, match=other):
        topology.devices("h100:8")


def test_the_clock_gives_the_peak_rate():
    """A multiprocessor adds so many products a cycle, by the white papers."""
    per_cycle = {"a100-80": 1024, "h100": 2048, "b200": 4096, "l4": 512, "a10g": 256, "4090": 256}
    for name, products in per_cycle.items():
        chip = hardware.NAMES[name]
        parts = chip.multiprocessors
        rate = 2 * products * parts.count * parts.clock * 1e9
        assert rate == pytest.approx(chip.flops, rel=0.01), name


def test_a_description_is_text_of_a_protocol_buffer():
    text = topology.target(hardware.L4, "xla_cuda13")
    assert 'name: "NVIDIA L4"' in text and "core_count: 58" in text
    assert "cuda_compute_capability { major: 8\nminor: 9 }" in text
    assert text.count("{") == text.count("}") == 3


def dry_run(*flags):
    done = call("dry_run", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@hardware_test
@pytest.mark.parametrize("name", ["h100:1", "a10g:1"])
def test_attention_with_dropout_lowers_for_one_gpu(name):
    """On several, shard_map tells Pallas the kind of GPU. An A10G is not known to it by name."""
    config = configs.load("configs/bert/base.py", {"model.num_layers": "1", "train.batch": "4"})
    program = Program.of(config, make_task(config), topology.devices(name))
    with estimate.lowering(program.mesh):
        lowered = program.train_step.lower(program.state, program.batch).as_text()
    assert lowered.count("xla.gpu.triton") == 3  # forward, and backward to queries and to keys


@hardware_test
def test_a_program_compiles_for_hosts_of_gpus():
    record, said = dry_run(*GPT, "--topology=h100:2x2", "--config.train.accumulation=4")
    arguments = record["bytes_per_device"]["arguments"]
    assert sum(record["arguments_by_consumer"].values()) == pytest.approx(arguments, rel=0.01)
    assert record["fits"] and record["device_memory"] == 60e9
    assert "it fits" in said and "compiled without autotuning" in said
    # The gradients cross the network once, and each of the two GPUs of a host sends a half.
    sent = record["collectives"]["all-reduce"]
    parameters = record["arguments_by_consumer"]["parameters"]
    assert sent["bytes"] == pytest.approx(parameters, rel=0.01)
    assert sent["between_hosts"] == pytest.approx(parameters / 2, rel=0.01)


@hardware_test
def test_a_state_that_is_too_large_is_refused():
    flags = ("--config=configs/gpt/gpt2.py:1558m", "--topology=l4:1", "--config.train.batch=1")
    record, said = dry_run(*flags, "--config.train.accumulation=1")
    assert record["fits"] is False and record["bytes_per_device"]["arguments"] > 18e9
    assert "it does not fit" in said
