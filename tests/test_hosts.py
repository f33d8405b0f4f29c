"""Runs of several processes with gloo: losses, rows, stops and errors."""

import collections
import functools
import http.server
import importlib.util
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.conftest import build_bert, build_config, build_gpt
from tests.finetuning import examples
from tests.programs import ENV
from tests.tasks.conftest import trained
from transformer_jax.config import UserError
from transformer_jax.distributed import hosts
from transformer_jax.runs.train import train
from transformer_jax.training import checkpoint

SHORT = dict(
    train__num_steps=6,
    train__batch=16,
    train__log_every=1,
    train__eval_every=6,
    checkpoint__every=2,
    model__dropout=0.0,
)


def build_choice(folder, **overrides):
    return examples.build(folder, "choice", examples.pretrained(folder, "bert"), **overrides)


FAMILIES = {
    "gpt": (
        build_gpt,
        "train_gpt",
        dict(model__attention_dropout=0.0, model__num_heads=4, task__sample_tokens=4),
    ),
    "bert": (build_bert, "train_bert", dict(model__attention_dropout=0.0)),
    "translation": (build_config, "train_wmt", dict(train__accumulation=2)),
    "choice": (build_choice, "finetune", {}),
}


def config_file(config, folder):
    """Writes the config as a file for the command line, and returns its path."""
    file = folder / "config.py"
    file.write_text(
        "from transformer_jax.config import experiment\n\n\n"
        f"def get_config():\n    return experiment(**{config.to_dict()!r})\n"
    )
    return file


def start(count, program, *flags, devices=4, numbers=None, own=None):
    """Starts the processes of a run. Returns a list of Popen.

    Each of the `count` processes has `devices` virtual devices. `numbers`: those to start, by
    default all. `own`: additional flags by number.
    """
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    env = {**ENV, "JAX_NUM_CPU_DEVICES": str(devices), "TF_CPP_MIN_LOG_LEVEL": "3"}
    processes = []
    for i in range(count) if numbers is None else numbers:
        command = [
            *(sys.executable, "-m", *program, *map(str, flags)),
            f"--coordinator=localhost:{port}",
            f"--num_processes={count}",
            f"--process_id={i}",
            *(own or {}).get(i, ()),
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env
        )
        processes.append(process)
    return processes


def finish(processes, code=0):
    """Waits for the processes, asserts their exit code, and returns their stderr."""
    errors = [process.communicate(timeout=240)[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert codes == [code] * len(processes), "\n".join(errors)
    return errors


def losses(workdir, name="train/loss"):
    """The recorded values of that name, by step; empty where there is no record."""
    path = workdir / "metrics.jsonl"
    if not path.exists():
        return {}
    recorded = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["step"]: line[name] for line in recorded if name in line}


def assert_equal_losses(workdir, expected_workdir, num_updates):
    for name, count in (
        ("train/loss", num_updates),
        ("train/grad_norm", num_updates),
        ("valid/loss", 1),
    ):
        expected = losses(expected_workdir, name)
        assert losses(workdir, name) == pytest.approx(expected, abs=1e-5)
        assert len(expected) == count


def wait_for_losses(workdir, process, count=1):
    """Waits until the run of the process has recorded so many losses."""
    while len(losses(workdir)) < count:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.2)


@pytest.mark.parametrize(
    "family, count",
    [
        pytest.param("gpt", 2, marks=pytest.mark.full),
        pytest.param("bert", 2, marks=pytest.mark.full),
        pytest.param("translation", 2, marks=pytest.mark.full),
        pytest.param("choice", 2, marks=pytest.mark.full),
        pytest.param("gpt", 4, marks=pytest.mark.full),
        pytest.param("bert", 4, marks=pytest.mark.full),
        pytest.param("translation", 4, marks=pytest.mark.full),
    ],
)
def test_losses_equal_those_of_one_process(family, count, tmp_path):
    build, program, more = FAMILIES[family]
    config = build(tmp_path, **SHORT, **more, mesh__fsdp=2, mesh__tensor=2)
    alone = tmp_path / "alone"
    train(config, alone)
    flags = (f"--config={config_file(config, tmp_path)}", f"--workdir={tmp_path}/several")
    finish(start(count, [f"transformer_jax.{program}"], *flags))
    assert_equal_losses(tmp_path / "several", alone, num_updates=6)


def test_two_processes_of_one_device_have_the_losses_of_one_process(tmp_path):
    build, program, more = FAMILIES["gpt"]
    short = {**SHORT, "train__num_steps": 2, "train__eval_every": 2}
    trained(build(tmp_path, **short, **more), tmp_path)
    config = build(tmp_path, **short, **more, mesh__fsdp=2)
    flags = (f"--config={config_file(config, tmp_path)}", f"--workdir={tmp_path}/several")
    finish(start(2, [f"transformer_jax.{program}"], *flags, devices=1))
    assert_equal_losses(tmp_path / "several", tmp_path / "run", num_updates=2)


@pytest.mark.full
def test_a_run_stopped_in_its_evaluation_has_the_scores_of_one_process(tmp_path, monkeypatch):
    """A signal to one process while both translate for BLEU: all stop between two programs."""
    build, program, more = FAMILIES["translation"]
    measured = {"optimizer__learning_rate": 0.02, "task__bleu_lines": 12, "decode__batch": 8}
    small = {"model__num_encoder_layers": 1, "model__num_decoder_layers": 1}
    config = build(tmp_path, **SHORT, **more, **measured, **small, mesh__fsdp=2)
    flags = (f"--config={config_file(config, tmp_path)}", f"--workdir={tmp_path}/several")
    with monkeypatch.context() as patch:
        patch.setitem(ENV, "SIGNAL_AT", "2")
        logged = ["tests.hosts_program", tmp_path / "rows", program]
        errors = finish(start(2, logged, *flags, devices=1), code=75)
    assert all("stopped at step 6, state saved" in error for error in errors)
    assert not losses(tmp_path / "several", "valid/bleu")
    finish(start(2, [f"transformer_jax.{program}"], *flags, devices=1))
    alone = trained(config, tmp_path / "alone", num_devices=2).workdir
    for name in ("train/loss", "valid/loss"):
        expected = losses(alone, name)
        assert expected and losses(tmp_path / "several", name) == pytest.approx(expected, abs=1e-5)
    assert losses(tmp_path / "several", "valid/bleu") == losses(alone, "valid/bleu")
    assert losses(alone, "valid/chrf")[6] > 0


@pytest.mark.full
def test_two_then_one_then_four_processes_read_the_same_rows(tmp_path):
    """Preempted twice, and resumed by another number of processes.

    Each row is read once, by one process. The losses are those of a straight run.
    """
    build, trainer, more = FAMILIES["gpt"]
    long = {"train__num_steps": 400, "checkpoint__every": 400, "train__eval_every": 400}
    config = build(tmp_path, **{**SHORT, **long}, **more)
    log = tmp_path / "rows"
    program = ["tests.hosts_program", log, trainer]
    flags = (f"--config={config_file(config, tmp_path)}", f"--workdir={tmp_path}/run")
    for count in (2, 1):
        processes = start(count, program, *flags) if count > 1 else [start_alone(program, *flags)]
        wait_for_losses(tmp_path / "run", processes[0], len(losses(tmp_path / "run")) + 3)
        # A signal to one process stops all.
        processes[-1].send_signal(signal.SIGTERM)
        finish(processes, code=75)
    last = max(losses(tmp_path / "run")) + 5
    intervals = ("train.num_steps", "train.eval_every", "checkpoint.every")
    shorter = [f"--config.{key}={last}" for key in intervals]
    finish(start(4, program, *flags, *shorter, devices=2))
    config.train.num_steps = config.train.eval_every = config.checkpoint.every = last
    train(config, tmp_path / "straight")
    expected = losses(tmp_path / "straight")
    assert losses(tmp_path / "run") == pytest.approx(expected, abs=1e-5)
    assert set(expected) == set(range(1, last + 1))
    _check_rows(log, last)


def start_alone(program, *flags):
    """Starts a run of one process with four virtual devices."""
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, program), *flags],
        stderr=subprocess.PIPE,
        text=True,
        env={**ENV, "JAX_NUM_CPU_DEVICES": "4"},
    )


def _check_rows(log, last):
    """Asserts that the last reads of each update are all its rows, once."""
    reads = collections.defaultdict(list)
    for process, step, indices in map(json.loads, log.read_text().splitlines()):
        reads[step].append((process, indices))
    # Batches that were read ahead and not used are read again after a resume.
    for step in range(last):
        newest = _by_run(reads[step])[-1]
        indices = [index for indices in newest.values() for index in indices]
        assert sorted(indices) == list(range(16)), step
    assert {len(_by_run(reads_of_step)[-1]) for reads_of_step in reads.values()} == {1, 2, 4}


def _by_run(reads):
    """Divides the reads of one update by run: a list of {process: indices}.

    A process that appears again, or a read after all 16 rows, belongs to a later run.
    """
    runs = [{}]
    for process, indices in reads:
        if process in runs[-1] or sum(map(len, runs[-1].values())) == 16:
            runs.append({})
        runs[-1][process] = indices
    return runs


@pytest.mark.full
def test_ctrl_c_to_one_saves_and_ends_all(tmp_path):
    """The parent of a process forwards the signal, and all processes stop at the same update."""
    build, trainer, more = FAMILIES["gpt"]
    long = {"train__num_steps": 100_000, "train__eval_every": 100_000, "checkpoint__every": 100_000}
    config = build(tmp_path, **{**SHORT, **long}, **more, mesh__fsdp=2)
    flags = (f"--config={config_file(config, tmp_path)}", f"--workdir={tmp_path}/run")
    processes = start(2, [f"transformer_jax.{trainer}"], *flags, devices=1)
    wait_for_losses(tmp_path / "run", processes[0])
    processes[1].send_signal(signal.SIGINT)
    steps = [
        re.search(r"stopped at step ([\d,]+), state saved", error)[1]
        for error in finish(processes, code=130)
    ]
    assert steps[0] == steps[1]
    assert (tmp_path / "run/checkpoints" / steps[0].replace(",", "")).is_dir()
    _check_digests(tmp_path / "run/checkpoints" / steps[0].replace(",", ""))


def _check_digests(folder):
    """Asserts that each process has digested its files, and that damage to each file is noticed."""
    listed = {
        name: json.loads((folder / name).read_text())
        for name in ("digests.json", "digests-0.json", "digests-1.json")
    }
    assert checkpoint.damage(folder) is None
    for process in 0, 1:
        own = listed[f"digests-{process}.json"]
        assert own and all(f"/ocdbt.process_{process}/" in name for name in own)
    names = [name for digests_of in listed.values() for name in digests_of]
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    unread = {"digests.json", "_CHECKPOINT_METADATA", "commit_success.txt"}
    assert sorted(names) == sorted(files - unread)
    for name in names:
        file = folder / name
        content = file.read_bytes()
        file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        assert checkpoint.damage(folder) == f"{name}: checksum mismatch"
        file.unlink()
        assert checkpoint.damage(folder) == f"{name}: missing"
        file.write_bytes(content)


@pytest.mark.full
@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.full)])
def test_a_killed_process_is_named_by_the_others_which_end(victim, tmp_path):
    build, trainer, more = FAMILIES["gpt"]
    long = {"train__num_steps": 100_000, "train__eval_every": 100_000, "checkpoint__every": 100_000}
    config = build(tmp_path, **{**SHORT, **long}, **more)
    flags = (f"--config={config_file(config, tmp_path)}", f"--workdir={tmp_path}/run")
    processes = start(2, [f"transformer_jax.{trainer}"], *flags, devices=1)
    wait_for_losses(tmp_path / "run", processes[0])
    processes[victim].kill()
    killed = time.monotonic()
    other = processes[1 - victim]
    error = other.communicate(timeout=120)[1]
    assert other.returncode == 1 and time.monotonic() - killed < 60
    assert f"process {1 - victim}: process {victim} ({socket.gethostname()})" in error
    assert "died or can't be reached" in error


@pytest.mark.full
def test_another_config_on_one_process_is_an_error_of_all(tmp_path):
    build, trainer, more = FAMILIES["gpt"]
    config = build(tmp_path, **SHORT, **more)
    flags = (f"--config={config_file(config, tmp_path)}", f"--workdir={tmp_path}/run")
    own = {1: ["--config.train.seed=7"]}
    processes = start(2, [f"transformer_jax.{trainer}"], *flags, devices=1, own=own)
    for error in finish(processes, code=2):
        assert f"process 1 ({socket.gethostname()}) does not run the same: " in error
        assert "config.train.seed: 7 there, 0 on process 0" in error
        assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_missing_processes_are_named(tmp_path):
    flags = ("--config=configs/gpt/quickstart.py", f"--workdir={tmp_path}/run", "--patience=3")
    alone = start(3, ["transformer_jax.train_gpt"], *flags, numbers=[0])
    late = start(2, ["transformer_jax.train_gpt"], *flags, numbers=[1])
    assert "process 1, 2 of 3 did not connect to process 0 within 3 s" in finish(alone, code=2)[0]
    error = finish(late, code=2)[0]
    assert "--coordinator=localhost:" in error and "process 0 did not answer" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--num_processes=2"], "--coordinator and --process_id missing"),
        (
            ["--coordinator=here:1", "--num_processes=2", "--process_id=2"],
            "--process_id=2: must be at least 0",
        ),
    ],
)
def test_flags_that_do_not_fit(flags, message, tmp_path):
    flags = ["--config=configs/gpt/quickstart.py", f"--workdir={tmp_path}/run", *flags]
    command = [sys.executable, "-m", "transformer_jax.train_gpt", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=ENV)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


SLURM = dict(SLURM_JOB_ID="4711", SLURM_STEP_NODELIST="node[1-2]", SLURM_PROCID="0")


@pytest.mark.parametrize(
    "environment, expected",
    [
        # A step of `srun`, whose SLURM_NTASKS is its own.
        (dict(NTASKS="4", STEP_NUM_TASKS="4", STEP_NUM_NODES="2"), dict(num_processes=4)),
        (
            dict(NTASKS="2", STEP_NUM_TASKS="2", STEP_NUM_NODES="2"),
            dict(num_processes=2, local_device_ids=[]),
        ),
        # The shell of `salloc --ntasks=4`: a step of one task with the variables of the allocation.
        (dict(NTASKS="4", STEP_NUM_TASKS="1", STEP_NUM_NODES="1"), None),
        # A smaller step that keeps the variables of the allocation (srun --preserve-env).
        (dict(NTASKS="4", STEP_NUM_TASKS="2", STEP_NUM_NODES="1"), dict(num_processes=2)),
        # A batch script without srun is no step of its own here.
        (dict(NTASKS="4", STEP_NODELIST=None), None),
        (dict(), None),
        (dict(NTASKS="3", STEP_NUM_NODES="1"), dict(num_processes=3)),
    ],
)
def test_a_slurm_step_has_as_many_processes_as_tasks(environment, expected, monkeypatch):
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name, value in {**SLURM, **{f"SLURM_{k}": v for k, v in environment.items()}}.items():
        if value is not None:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name, raising=False)
    slurm = expected and {"cluster_detection_method": "slurm", **expected}
    assert hosts.arguments(None, None, None) == slurm


class Metadata(http.server.BaseHTTPRequestHandler):
    """Google's metadata server on a machine with the attributes `server.attributes`."""

    def do_GET(self):
        assert self.headers["Metadata-Flavor"] == "Google"
        name = self.path.removeprefix("/computeMetadata/v1/instance/attributes/")
        self.send_response(self.server.attributes.get(name, 404))
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def google_machine(tmp_path, monkeypatch):
    """Returns the metadata server of a machine of Google's on which libtpu is installed."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "TPU_", "MEGASCALE_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "0000:00:04.0").mkdir()
    (tmp_path / "0000:00:04.0/vendor").write_text("0x1ae0\n")
    monkeypatch.setattr(hosts, "_PCI_VENDORS", str(tmp_path / "*/vendor"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    server = http.server.HTTPServer(("127.0.0.1", 0), Metadata)
    server.attributes = {}
    monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_the_metadata_tell_a_worker_of_a_tpu_slice(google_machine, monkeypatch):
    arguments = functools.partial(hosts.arguments, None, None, None)
    assert arguments() is None
    google_machine.attributes["agent-worker-number"] = 200
    assert arguments() == {}
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    assert arguments() is None
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY")
    google_machine.attributes["agent-worker-number"] = 503
    with pytest.raises(UserError, match="whether this machine is a worker .*503"):
        arguments()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert arguments() is None


def test_elsewhere_nothing_is_asked(google_machine, monkeypatch):
    """As on a machine with libtpu for compilation alone; TPU_WORKER_HOSTNAMES names no others."""
    monkeypatch.setattr(hosts, "_PCI_VENDORS", "/nowhere/*")
    google_machine.attributes["agent-worker-number"] = 200
    assert hosts.arguments(None, None, None) is None
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost")
    assert hosts.arguments(None, None, None) is None
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "worker-0,worker-1")
    assert hosts.arguments(None, None, None) == {}


JOIN = """
from transformer_jax.distributed import hosts
hosts.connect(hosts.arguments(None, None, None), 60)
from jax._src import distributed
print(hosts.index(), hosts.count(), distributed.global_state.coordinator_address, flush=True)
"""


@pytest.mark.full
def test_two_steps_of_a_slurm_job_do_not_meet():
    """Each has as many processes as its own tasks, and a port of its own, JAX's for step 0."""
    job = dict(SLURM_JOB_ID="4711", SLURM_NTASKS="4", SLURM_STEP_NODELIST="localhost")
    steps = {"0": [], "1": []}
    for step, task in itertools.product(steps, "01"):
        own = dict(STEP_ID=step, STEP_NUM_TASKS="2", STEP_NUM_NODES="1", PROCID=task, LOCALID=task)
        env = {**ENV, **job, **{f"SLURM_{name}": value for name, value in own.items()}}
        command = [sys.executable, "-c", JOIN]
        steps[step].append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    for step, port in (("0", 61440 + 4711 % 4096), ("1", 61440 + (4711 + 997) % 4096)):
        lines = [process.communicate(timeout=120)[0].split() for process in steps[step]]
        assert lines == [[task, "2", f"localhost:{port}"] for task in "01"]
