"""Fixtures of the tests of token stores."""

import pytest

from transformer_jax.data import store


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(store, "_SHARD_BYTES", 128)  # 64 tokens
    monkeypatch.setattr(store, "_CHUNK_BYTES", 32)


@pytest.fixture(params=["disk", "bucket"])
def cache(request, tmp_path):
    if request.param == "bucket":
        request.getfixturevalue("gcs")
    return "gs://bucket/some/cache" if request.param == "bucket" else str(tmp_path)
