"""A stand-in bucket for the tests of storage."""

import pytest

from transformer_jax.runs import train


@pytest.fixture
def fast(gcs, monkeypatch):
    """A stand-in with listings in one piece, and with leases that end soon."""
    monkeypatch.setattr(gcs, "page", 1000)
    monkeypatch.setattr(train, "RENEWAL", 0.1)
    monkeypatch.setattr(train, "SILENCE", 0.6)
    return gcs
