"""The launch scripts, with a fake gcloud and with commands that are preempted."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

LAUNCH = pathlib.Path(__file__).parent.parent / "launch"

GCLOUD = """#!/usr/bin/env bash
# A slice exists while the file `state` exists. It is suspended when its exit code is first read.
echo "$*" >> calls
case "$*" in
  *queued-resources\\ create*) echo ACTIVE > state ;;
  *queued-resources\\ delete*) rm state ;;
  *describe*) cat state 2>/dev/null ;;
  *scp*) tar -tzf "$5" > shipped ;;
  *exit_code\\ 2*) if [[ -e taken ]]; then echo 3; else touch taken; echo SUSPENDED > state; fi ;;
esac
"""


@pytest.fixture
def slices(tmp_path):
    """Returns a function that calls tpu_vm.sh, and one that returns gcloud's commands so far.

    The script lies in `checkout`, a repository with one commit.
    """
    checkout = tmp_path / "checkout"
    (checkout / "launch").mkdir(parents=True)
    shutil.copy(LAUNCH / "tpu_vm.sh", checkout / "launch")
    (checkout / ".gitignore").write_text("/runs/\n")
    _git(checkout, "init", "--quiet")
    _git(checkout, "add", ".")
    _git(checkout, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all")
    (tmp_path / "gcloud").write_text(GCLOUD)
    (tmp_path / "gcloud").chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "ZONE": "here",
        "TYPE": "v5litepod-16",
        "SPOT": "1",
        "EVERY": "0",
    }

    def call(*arguments, **changes):
        return subprocess.run(
            [checkout / "launch/tpu_vm.sh", *arguments],
            env={key: value for key, value in (env | changes).items() if value},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls():
        path = tmp_path / "calls"
        return path.read_text().splitlines() if path.exists() else []

    return call, calls


def _git(checkout, *arguments):
    done = subprocess.run(["git", *arguments], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_suspended_slice_is_created_again_until_the_command_ends(slices):
    call, calls = slices
    done = call(
        "keep", "mine", "python", "-m", "transformer_jax.train_gpt", "--workdir=gs://b/it's here"
    )
    assert done.returncode == 3 and "mine was taken away (SUSPENDED)" in done.stderr, done.stderr

    def count(part):
        return sum(part in line for line in calls())

    assert count("queued-resources create mine --node-id=mine") == 2
    assert count("--spot") == 2
    assert count("queued-resources delete") == 1
    assert count("--accelerator-type=v5litepod-16 --runtime-version=v2-alpha-tpuv5-lite") == 2
    assert count("scp") == 2
    assert count("until_done.sh python") == 2
    assert count("setup_venv.sh tpu") == 2


def test_the_workers_run_the_command_with_its_arguments(slices, tmp_path):
    call, calls = slices
    assert call("run", "mine", "printf", "<%s>", "it's", "$HOME", "a  b").returncode == 0
    [line] = calls()
    command = line.partition("--command=")[2]
    home = tmp_path / "home"
    (home / "transformer_jax/launch").mkdir(parents=True)
    shutil.copy(LAUNCH / "until_done.sh", home / "transformer_jax/launch")
    env = {**os.environ, "HOME": str(home)}
    subprocess.run(["bash", "-c", command], cwd=home, env=env, check=True)
    while not (home / "exit_code").exists() or not (home / "exit_code").read_text():
        time.sleep(0.05)
    assert (home / "log").read_text() == "<it's><$HOME><a  b>"
    assert (home / "exit_code").read_text() == "0\n"


def test_print_runs_nothing(slices):
    call, calls = slices
    done = call("--print", "keep", "mine", "python", "train.py")
    assert done.returncode == 0 and not calls()
    assert [line.split()[3] for line in done.stdout.splitlines() if line.startswith("gcloud")] == [
        "queued-resources",
        "tpu-vm",
        "tpu-vm",
        "tpu-vm",
        "queued-resources",
        "tpu-vm",
        "queued-resources",
    ]


def test_changes_are_refused_or_shipped(slices, tmp_path):
    call, calls = slices
    checkout = tmp_path / "checkout"
    committed = [".gitignore", "launch/", "launch/tpu_vm.sh"]
    (checkout / "runs").mkdir()
    (checkout / "runs/ignored").touch()
    assert call("install", "mine").returncode == 0
    assert (tmp_path / "shipped").read_text().split() == committed

    (checkout / "new.py").touch()
    (checkout / ".gitignore").write_text("/runs/\n.venv/\n")
    _git(checkout, "add", ".gitignore")
    before, status = calls(), _git(checkout, "status", "--porcelain")
    for step in (["install", "mine"], ["keep", "mine", "python"]):
        refused = call(*step)
        assert refused.returncode == 2 and "SHIP_CHANGES=1" in refused.stderr
        assert "M  .gitignore" in refused.stderr and "?? new.py" in refused.stderr
    assert calls() == before

    shipped = call("install", "mine", SHIP_CHANGES="1")
    assert shipped.returncode == 0 and "?? new.py" in shipped.stderr
    assert (tmp_path / "shipped").read_text().split() == [*committed, "new.py"]
    assert _git(checkout, "status", "--porcelain") == status


@pytest.mark.parametrize(
    "arguments, changes, message",
    [
        (["create"], {}, "usage"),
        (["create", "mine"], {"ZONE": ""}, "ZONE is missing"),
        (["make", "mine"], {}, "no step make"),
    ],
)
def test_mistakes(slices, arguments, changes, message):
    call, _ = slices
    done = call(*arguments, **changes)
    assert done.returncode and message in done.stderr


def test_preempted_runs_go_on_until_done(tmp_path):
    script = (
        "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) > n; [[ $n -ge 2 ]] && exit 4; exit 75"
    )
    command = [LAUNCH / "until_done.sh", "bash", "-c", script]
    output = {"capture_output": True, "text": True}
    done = subprocess.run(command, cwd=tmp_path, timeout=30, **output)
    assert done.returncode == 4
    assert (tmp_path / "n").read_text() == "3\n"
    assert done.stderr.count("going on") == 2


@pytest.mark.parametrize(
    "name, number, code", [("TERM", signal.SIGTERM, 75), ("INT", signal.SIGINT, 130)]
)
def test_a_signal_is_passed_on_and_ends_the_script(name, number, code, tmp_path):
    script = f"trap 'exit {code}' {name}; touch up; while :; do sleep 0.05; done"
    running = subprocess.Popen([LAUNCH / "until_done.sh", "bash", "-c", script], cwd=tmp_path)
    while not (tmp_path / "up").exists():
        time.sleep(0.05)
    running.send_signal(number)
    assert running.wait(timeout=20) == code


def test_ctrl_c_reaches_each_process_once(tmp_path):
    """A terminal sends it to the process group of the script."""
    script = (
        "trap 'echo INT >> received' INT; touch up-$$; while [[ ! -e end ]]; do sleep 0.05; done"
    )
    running = subprocess.Popen(
        [LAUNCH / "local_multihost.sh", "2", "bash", "-c", script],
        cwd=tmp_path,
        start_new_session=True,
    )
    while len(list(tmp_path.glob("up-*"))) < 2:
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    received = tmp_path / "received"
    while not received.exists() or received.read_text().count("INT") < 2:
        assert running.poll() is None
        time.sleep(0.05)
    (tmp_path / "end").touch()
    assert running.wait(timeout=20) == 0
    assert received.read_text() == "INT\nINT\n"


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="needs shellcheck")
def test_shellcheck_finds_nothing():
    scripts = [path for path in LAUNCH.iterdir() if path.suffix in (".sh", ".sbatch")]
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_test_script_explains_itself():
    done = subprocess.run([LAUNCH / "test.sh", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "launch/test.sh --quick" in done.stdout


WAITING = """#!/usr/bin/env bash
# An interpreter whose pip waits for the file `end`, which holds its exit code.
case "$*" in
  *jax==*) ;;
  --version) echo Python 3.11.0 ;;
  *venv\\ --clear*) mkdir -p "$4/bin" "$4/lib/python3.11/site-packages/pip.dist-info"
    cp "$0" "$4/bin/python" ;;
  *pip\\ install*) sleep 0.2; echo "Collecting jax"; echo "  Downloading jax.whl (2.1 MB)"
    trap 'exit 130' INT
    for _ in {1..1000}; do
      if [[ -s end ]]; then exit "$(cat end)"; fi
      sleep 0.02
    done
    exit 9 ;;
esac
"""


@pytest.fixture
def setup(tmp_path):
    """Yields setup_venv.sh, started with a fake interpreter, once it has told of pip."""
    (tmp_path / "launch").mkdir()
    for name in ("setup_venv.sh", "each_minute.sh"):
        shutil.copy(LAUNCH / name, tmp_path / "launch")
    (tmp_path / "setup.py").touch()
    (tmp_path / "python").write_text(WAITING)
    (tmp_path / "python").chmod(0o755)
    running = subprocess.Popen(
        ["bash", "launch/setup_venv.sh", "test"],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": str(tmp_path / "python"), "HEARTBEAT": "0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    told = (
        "waiting for pip since 0 min, 1 packages found, 1 installed:   Downloading jax.whl (2.1 MB)"
    )
    try:
        # The lines before it are of an emptier log.
        assert any(told in line for line in iter(running.stderr.readline, ""))
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)


# In each of the next tests, `communicate` returns only when the heartbeat has ended, too: it holds
# the script's stdout and stderr.


def test_the_set_up_says_what_it_waits_for(setup, tmp_path):
    (tmp_path / "end").write_text("0")
    output, _ = setup.communicate(timeout=20)
    assert setup.returncode == 0 and output == f"{tmp_path}/.venv/bin/python\n"


def test_a_failed_set_up_names_the_output_of_pip(setup, tmp_path):
    (tmp_path / "end").write_text("3")
    output, errors = setup.communicate(timeout=20)
    assert setup.returncode == 1 and not output
    assert errors.endswith(
        "  Downloading jax.whl (2.1 MB)\n"
        f"setup_venv.sh: pip failed; all of its output is in {tmp_path}/.venv/pip.log\n"
    )
    assert not list(tmp_path.glob(".venv/.installed*"))


def test_ctrl_c_ends_the_set_up(setup):
    os.killpg(setup.pid, signal.SIGINT)
    setup.communicate(timeout=20)
    assert setup.returncode in (1, -signal.SIGINT, 130)


PYTHON = """#!/usr/bin/env bash
# Python {version}. A copy of it is the interpreter of a virtual environment. Only Python 3.13 can
# have jax 0.12.0.1.
here=$(dirname "$0")
case "$*" in
  *pip\\ install*)
    arguments=$*
    echo "{version} ${{arguments#*--no-input }}" >> "$CALLS"
    if [[ {version} == 3.11 && $* == *jax==0.12* ]]; then
      echo "ERROR: No matching distribution"
      exit 1
    fi
    touch "$here/jax" ;;
  *pip\\ --version*) ;;
  *-m\\ venv*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
  *importlib.metadata*) [[ -e $here/jax ]] ;;
  *--version*) echo "Python {version}" ;;
esac
"""


@pytest.fixture
def set_up(tmp_path):
    """Returns a function that calls setup_venv.sh, and one that returns pip's arguments so far."""
    checkout, calls = tmp_path / "checkout", tmp_path / "calls"
    (checkout / "launch").mkdir(parents=True)
    for name in ("setup_venv.sh", "each_minute.sh"):
        shutil.copy(LAUNCH / name, checkout / "launch")
    (checkout / "setup.py").write_text("")
    for name, version in (("python3", "3.11"), ("python3.11", "3.11"), ("python3.13", "3.13")):
        (tmp_path / name).write_text(PYTHON.format(version=version))
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"

    def run(*arguments, **environment):
        done = subprocess.run(
            ["bash", "launch/setup_venv.sh", *arguments],
            cwd=checkout,
            env={"PATH": path, "CALLS": str(calls)} | environment,
            capture_output=True,
            text=True,
        )
        return done

    return run, lambda: calls.read_text().replace(str(checkout), "ROOT").splitlines()


def test_a_new_environment_gets_the_fastest_jax_and_an_installed_one_stays(set_up, tmp_path):
    run, calls = set_up
    assert run("test").stdout.endswith("checkout/.venv/bin/python\n")
    assert calls() == ["3.11 jax==0.10.1", "3.11 --use-pep517 -e ROOT[test]"]
    # The second call installs nothing, a new setup.py only the package.
    assert run("test").returncode == 0
    (tmp_path / "checkout" / "setup.py").write_text("new")
    assert run("test").returncode == 0
    assert calls()[2:] == ["3.11 --use-pep517 -e ROOT[test]"]


def test_a_release_of_jax_gets_an_environment_with_a_python_that_can_have_it(set_up):
    run, calls = set_up
    done = run("test", "--jax=0.12.0.1")
    assert done.stdout.endswith("checkout/.venv-jax-0.12.0.1/bin/python\n"), done.stderr
    assert calls() == [
        "3.11 jax==0.12.0.1",
        "3.13 jax==0.12.0.1",
        "3.13 --use-pep517 -e ROOT[test] jax==0.12.0.1",
    ]


def test_a_python_that_cannot_have_a_release_of_jax_is_named(set_up):
    run, _ = set_up
    done = run("--jax=0.12.0.1", PYTHON="python3.11")
    assert done.returncode == 2 and not done.stdout
    assert "Python 3.11: ERROR: No matching distribution" in done.stderr
    assert "jax==0.12.0.1 could not be installed; PYTHON=/path/to/python" in done.stderr
