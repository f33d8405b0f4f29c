"""A part of the suite with all of XLA's optimisations, of which the suite uses few."""

import subprocess
import sys

import pytest

from tests.programs import optimized


@pytest.mark.full
def test_what_users_run():
    """Runs tests/as_users_run.py: a resumed run of each family, a mesh, decoding."""
    command = [sys.executable, "-m", "pytest", "tests/as_users_run.py", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, env=optimized(), timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
