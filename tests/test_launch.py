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
# A cloud with at most one slice, whose two workers have folders of $CLOUD as their homes. The slice
# exists while the file `state` exists. $STORY says what goes wrong.
cd "$CLOUD"
echo "$*" >>calls
error() { echo "ERROR: (gcloud) $*" >&2; exit 1; }
first() { [[ ! -e first ]] && touch first; }
await() { until [[ -s $1 ]]; do sleep 0.02; done; }
stop() { read -r _ session <"$1/session" && pkill -KILL --session "$session"; } 2>/dev/null
for argument; do
  case $argument in
    --worker=all) homes="worker-0 worker-1" ;;
    --worker=*) homes=worker-${argument#*=} ;;
    --command=*) command=${argument#*=} ;;
  esac
done
case "$STORY $*" in
  typo*--zone=us-west9*) error "PERMISSION_DENIED: Location us-west9 is not found." ;;
  typo*\\ create\\ *) error "INVALID_ARGUMENT: accelerator type v5litepod-17 is not found." ;;
  quota*\\ create\\ *) error "RESOURCE_EXHAUSTED: Quota TPUV5sPreemptible has been exceeded." ;;
  late*\\ create\\ *) echo FAILED >state ;;
  *\\ create\\ *) echo ACTIVE >state; mkdir worker-0 worker-1 ;;
  *\\ delete\\ *) for home in worker-*; do stop $home; done; rm -rf state worker-* ;;
  *yaml*) echo "state: {failedData: {error: {message: no more quota}}, state: $(cat state)}" ;;
  *\\ describe\\ *) cat state 2>/dev/null || error "NOT_FOUND: Resource was not found." ;;
  *\\ scp\\ *)
    for home in $homes; do
      if [[ $7 == mine:* ]]; then cp -r "$6" "$home/${7#*:}"; else cp -r "$home/${6#*:}" "$7"; fi
    done ;;
  *\\ ssh\\ *)
    case "$STORY $command" in
      preempted*state) ! first || { echo SUSPENDED >state; exit 255; } ;;
      lost*state) echo SUSPENDED >state; exit 255 ;;
      silent*state) exit 255 ;;
      rebooted*state) ! first || { await worker-1/starts; stop worker-1; touch rebooted; } ;;
    esac
    for home in $homes; do (cd $home && HOME=$PWD bash -c "$command") || exit; done ;;
esac
"""


@pytest.fixture
def slices(tmp_path):
    """Yields a function that calls tpu_vm.sh, and one that returns gcloud's commands so far.

    The script lies in `checkout`, a repository with one commit, whose setup_venv.sh writes a line
    to `installs` and fails in the story "broken". The cloud is the folder `cloud`.
    """
    checkout, cloud = tmp_path / "checkout", tmp_path / "cloud"
    (checkout / "launch").mkdir(parents=True)
    cloud.mkdir()
    for name in ("tpu_vm.sh", "worker.sh", "until_done.sh"):
        shutil.copy(LAUNCH / name, checkout / "launch")
    set_up = checkout / "launch/setup_venv.sh"
    set_up.write_text('#!/bin/bash\necho "$1" >>"$CLOUD/installs"\n[[ $STORY != broken ]]\n')
    set_up.chmod(0o755)
    (checkout / ".gitignore").write_text("/runs/\n")
    _git(checkout, "init", "--quiet")
    _commit(checkout)
    (tmp_path / "gcloud").write_text(GCLOUD)
    (tmp_path / "gcloud").chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CLOUD": str(cloud),
        "STORY": "plain",
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
        path = cloud / "calls"
        return path.read_text().splitlines() if path.exists() else []

    yield call, calls
    subprocess.run([tmp_path / "gcloud", "queued-resources", "delete", "mine"], env=env)


def _git(checkout, *arguments):
    done = subprocess.run(["git", *arguments], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _commit(checkout):
    _git(checkout, "add", ".")
    _git(checkout, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all")


def _count(calls, part):
    return sum(part in line for line in calls())


REMAINS = "ZONE=here TYPE=v5litepod-16 {checkout}/launch/tpu_vm.sh delete mine\n"


def test_a_preempted_slice_is_created_again_until_the_command_ends(slices, tmp_path):
    call, calls = slices
    done = call("keep", "mine", "bash", "-c", "exit 3", STORY="preempted")
    assert done.returncode == 3, done.stderr
    assert "mine was taken away (SUSPENDED); asking for another" in done.stderr
    assert "the command has ended with 3" in done.stderr
    assert done.stderr.endswith(REMAINS.format(checkout=tmp_path / "checkout"))
    assert _count(calls, "queued-resources create mine --node-id=mine") == 2
    assert _count(calls, "--spot") == 2
    kind = "--accelerator-type=v5litepod-16 --runtime-version=v2-alpha-tpuv5-lite"
    assert _count(calls, kind) == 2
    assert _count(calls, "queued-resources delete") == 1
    assert (tmp_path / "cloud/installs").read_text() == "tpu\n" * 4


def test_the_end_of_the_command_is_the_end(slices, tmp_path):
    """Any worker's code other than 0 counts, and the slice remains for its logs."""
    call, calls = slices
    script = "[[ $HOME == *worker-1 ]] && exit 2; exit 0"
    done = call("keep", "mine", "bash", "-c", script)
    assert done.returncode == 2 and "the command has ended with 2" in done.stderr
    assert done.stderr.endswith(REMAINS.format(checkout=tmp_path / "checkout"))
    assert not _count(calls, "queued-resources delete")
    assert call("status", "mine").stdout == "ACTIVE 2\n"


@pytest.mark.parametrize("delete", ["", "1"])
def test_a_command_that_ends_with_0(delete, slices, tmp_path):
    call, calls = slices
    done = call("keep", "mine", "true", DELETE=delete)
    assert done.returncode == 0 and "the command has ended with 0" in done.stderr
    assert _count(calls, "queued-resources delete") == bool(delete)
    assert ("still exists" in done.stderr) != bool(delete)
    assert call("status", "mine").stdout == ("GONE\n" if delete else "ACTIVE 0\n")


def test_after_a_reboot_the_command_starts_again(slices, tmp_path):
    """The command vanishes from one worker, and is started anew on both. It lies on their disks."""
    call, calls = slices
    script = "echo >>~/starts; until [[ -e $CLOUD/rebooted ]]; do sleep 0.02; done"
    done = call("keep", "mine", "bash", "-c", script, STORY="rebooted")
    assert done.returncode == 0, done.stderr
    assert "the command has vanished from a worker of mine, as in a reboot" in done.stderr
    assert (tmp_path / "cloud/worker-1/starts").read_text() == "\n\n"
    assert _count(calls, "scp") == 1 and _count(calls, "queued-resources create") == 1


@pytest.mark.parametrize(
    "story, changes, code, told",
    [
        ("quota", {}, 1, "Quota TPUV5sPreemptible has been exceeded"),
        ("typo", {"TYPE": "v5litepod-17"}, 1, "accelerator type v5litepod-17 is not found"),
        ("typo", {"ZONE": "us-west9"}, 2, "Location us-west9 is not found"),
        ("late", {}, 1, "no more quota"),
    ],
)
def test_a_refused_request_ends_at_once(story, changes, code, told, slices, tmp_path):
    call, calls = slices
    done = call("keep", "mine", "true", STORY=story, **changes)
    assert done.returncode == code and told in done.stderr
    assert _count(calls, " create ") == (code == 1) and not _count(calls, "ssh")
    assert not (tmp_path / "cloud/state").exists() and "still exists" not in done.stderr


def test_three_failed_installations_end_it_and_the_slice(slices, tmp_path):
    call, calls = slices
    done = call("keep", "mine", "true", STORY="broken")
    assert done.returncode == 1 and "the installation has failed 3 times" in done.stderr
    assert _count(calls, "scp") == 3 and _count(calls, " create ") == 1
    assert done.stderr.endswith("deleting mine\n") and not (tmp_path / "cloud/state").exists()


def test_a_slice_that_keep_has_not_created_is_not_deleted(slices, tmp_path):
    call, calls = slices
    assert call("create", "mine").returncode == 0
    done = call("keep", "mine", "true", STORY="broken")
    assert done.returncode == 1 and done.stderr.endswith(
        REMAINS.format(checkout=tmp_path / "checkout")
    )
    assert (tmp_path / "cloud/state").read_text() == "ACTIVE\n"


@pytest.mark.parametrize(
    "story, most, told",
    [
        ("lost", 10, "10 slices or starts in a row were lost within an hour each"),
        ("silent", 30, "mine has given no answer to 30 checks"),
    ],
)
def test_no_loop_is_without_a_bound(story, most, told, slices, tmp_path):
    call, calls = slices
    done = call("keep", "mine", "sleep", "60", STORY=story)
    assert done.returncode == 1 and told in done.stderr
    assert _count(calls, "worker.sh state") == most
    assert (tmp_path / "cloud/state").exists() == ("still exists" in done.stderr)
    assert ("still exists" in done.stderr) == (story == "silent")


def test_the_workers_run_the_command_with_its_arguments(slices, tmp_path):
    call, _ = slices
    assert call("create", "mine").returncode == call("install", "mine").returncode == 0
    assert call("run", "mine", "printf", "<%s>", "it's", "$HOME", "a  b").returncode == 0
    while call("status", "mine").stdout == "ACTIVE running\n":
        time.sleep(0.05)
    for worker in "01":
        assert (tmp_path / f"cloud/worker-{worker}/log").read_text() == "<it's><$HOME><a  b>"
    assert call("status", "mine").stdout == "ACTIVE 0\n"


def test_files_go_to_all_workers_and_come_from_one(slices, tmp_path):
    call, _ = slices
    call("create", "mine")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/text").write_text("abc")
    assert call("send", "mine", str(tmp_path / "data"), "texts").returncode == 0
    assert (tmp_path / "cloud/worker-1/texts/text").read_text() == "abc"
    assert call("fetch", "mine", "texts", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back/text").read_text() == "abc"
    missing = call("send", "mine", "nothing", "texts")
    assert missing.returncode == 2 and "send: nothing: no such file" in missing.stderr


@pytest.fixture
def worker(tmp_path):
    """Returns a function that calls worker.sh at the home `tmp_path`, and returns its output."""
    (tmp_path / "launch").mkdir()
    for name in ("worker.sh", "until_done.sh"):
        shutil.copy(LAUNCH / name, tmp_path / "launch")

    def call(*arguments):
        env = {**os.environ, "HOME": str(tmp_path)}
        command = [tmp_path / "launch/worker.sh", *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    return call


def test_a_worker_stops_the_earlier_command(worker, tmp_path):
    """With SIGTERM, on which a training saves its state. It is not repeated for its code 75."""
    script = (
        "trap 'echo saved; exit 75' TERM; echo up >~/up; "
        "while [[ ! -e ~/end ]]; do sleep 0.05; done"
    )
    assert worker("state") == "dead\n"
    for _ in range(2):
        worker("start", "bash", "-c", script)
        while not (tmp_path / "up").exists():
            time.sleep(0.05)
        assert worker("state") == "running\n"
        (tmp_path / "up").unlink()
    assert (tmp_path / "log").read_text() == "saved\n"
    (tmp_path / "end").touch()
    while worker("state") == "running\n":
        time.sleep(0.05)
    assert worker("state") == "0\n"


def test_after_a_reboot_the_number_of_a_session_means_nothing(worker, tmp_path):
    worker("start", "bash", "-c", "while [[ ! -e ~/end ]]; do sleep 0.05; done")
    session = (tmp_path / "session").read_text()
    assert worker("state") == "running\n"
    (tmp_path / "session").write_text(f"another-boot {session.split()[1]}\n")
    assert worker("state") == "dead\n"
    (tmp_path / "session").write_text(session)
    (tmp_path / "end").touch()
    while worker("state") == "running\n":
        time.sleep(0.05)


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
    committed = [".gitignore", "launch"]

    def shipped():
        content = tmp_path / "cloud/worker-1/transformer_jax"
        return sorted(path.name for path in content.iterdir())

    call("create", "mine")
    (checkout / "runs").mkdir()
    (checkout / "runs/ignored").touch()
    assert call("install", "mine").returncode == 0
    assert shipped() == committed

    (checkout / "new.py").touch()
    (checkout / ".gitignore").write_text("/runs/\n.venv/\n")
    _git(checkout, "add", ".gitignore")
    before, status = calls(), _git(checkout, "status", "--porcelain")
    for step in (["install", "mine"], ["keep", "mine", "python"]):
        refused = call(*step)
        assert refused.returncode == 2 and "SHIP_CHANGES=1" in refused.stderr
        assert "M  .gitignore" in refused.stderr and "?? new.py" in refused.stderr
    assert calls() == before

    done = call("install", "mine", SHIP_CHANGES="1")
    assert done.returncode == 0 and "?? new.py" in done.stderr
    assert shipped() == [*committed, "new.py"]
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
# have jax 0.12.0.1. The uv that it installs brings the interpreter $NEW.
here=$(dirname "$0")
case "$*" in
  *sys.version_info*) [[ {version} != 3.10 ]] ;;
  *pip\\ install*--target*uv*)
    arguments=$*
    target=${{arguments#*--target }}
    mkdir -p "${{target%% *}}/bin"
    cp "$UV" "${{target%% *}}/bin/uv" ;;
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


UV = """#!/usr/bin/env bash
# uv, which installs the interpreter $NEW.
case "$*" in
  *python\\ install*3.11) mkdir -p "$UV_PYTHON_INSTALL_DIR/cpython" &&
    cp "$NEW" "$UV_PYTHON_INSTALL_DIR/cpython/python3.11" ;;
  *python\\ find*) echo "$UV_PYTHON_INSTALL_DIR/cpython/python3.11" ;;
  *) exit 2 ;;
esac
"""


@pytest.fixture
def python_310(tmp_path):
    """Returns the environment of a machine whose only Python is 3.10."""
    old = tmp_path / "old"
    old.mkdir()
    for name in ("python3", "python3.13", "python3.12", "python3.11", "python"):
        (old / name).write_text(PYTHON.format(version="3.10"))
        (old / name).chmod(0o755)
    for name, content in (("new", PYTHON.format(version="3.11")), ("uv", UV)):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
    path = f"{old}:{tmp_path}:/usr/bin:/bin"
    # The variable PYTHON of the user who runs the tests would name another Python.
    new = {"UV": str(tmp_path / "uv"), "NEW": str(tmp_path / "new")}
    return {"PATH": path, "PYTHON": "", **new}


def test_a_worker_that_has_python_310_alone_gets_another(slices, python_310, tmp_path):
    call, _ = slices
    checkout = tmp_path / "checkout"
    for name in ("setup_venv.sh", "each_minute.sh"):
        shutil.copy(LAUNCH / name, checkout / "launch")
    (checkout / "setup.py").touch()
    _commit(checkout)
    pip = tmp_path / "pip"
    call("create", "mine")
    done = call("install", "mine", CALLS=str(pip), **python_310)
    assert done.returncode == 0, done.stderr
    assert "no Python is 3.11 or newer here; installing 3.11" in done.stderr
    root = tmp_path / "cloud/worker-{}/transformer_jax"
    for worker in "01":
        venv = pathlib.Path(str(root).format(worker)) / ".venv/bin/python"
        assert venv.read_text() == (tmp_path / "new").read_text()
    assert pip.read_text().splitlines() == [
        line
        for worker in "01"
        for line in (
            "3.11 jax==0.10.1",
            f"3.11 --use-pep517 -e {str(root).format(worker)}[tpu]",
        )
    ]


def test_without_a_new_python_the_reason_is_told(set_up, python_310, tmp_path):
    run, _ = set_up
    (tmp_path / "uv").write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    done = run("test", **python_310)
    assert done.returncode == 2 and not done.stdout
    assert "uv could not install it: no network" in done.stderr
    assert "needs Python 3.11 or newer; PYTHON=/path/to/python names one" in done.stderr


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
