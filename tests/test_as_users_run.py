"""The suite compiles with few of XLA's optimisations; here a part of it runs with all of them."""

import subprocess
import sys

from tests.programs import optimized


def test_what_users_run():
    """Resuming, for each family; a mesh; decoding: see tests/as_users_run.py."""
    command = [sys.executable, "-m", "pytest", "tests/as_users_run.py", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, env=optimized(), timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
