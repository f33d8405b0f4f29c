"""Faults injected into real runs.

The import sets up JAX as for all tests, so that this process computes the same as the commands.
Outside of pytest (`python -m tests.faults`) both compile with XLA's normal optimisations.
"""

import os
import sys

if "tests.conftest" not in sys.modules:
    os.environ.setdefault("TEST_OPTIMIZED", "1")

import tests.conftest  # noqa: E402, F401
