"""Faults injected into real runs. The first import sets JAX up as for all tests, so that what runs in this process computes what the commands compute."""
import tests.conftest  # noqa: F401
