"""Faults injected into real runs.

The import sets JAX up as for all tests, so that this process computes what the commands compute.
Outside of pytest (`python -m tests.faults`) both compile as users do.
"""

import os
import sys

if "tests.conftest" not in sys.modules:
    os.environ.setdefault("TEST_OPTIMIZED", "1")

import tests.conftest  # noqa: E402, F401
