"""Preparing data with several workers: the processes of a job, and Apache Beam."""

import importlib.util
import pickle

import pytest

from tests.conftest import build_config, build_gpt
from tests.data.stores import contents, counting
from tests.programs import call, refused
from tests.test_hosts import config_file, finish, start
from transformer_jax.config import UserError
from transformer_jax.data import store
from transformer_jax.data.sources import text_files
from transformer_jax.runs.spec import make_task

PROGRAM = ["tests.prepare_program", "300"]


def stores(cache):
    """Returns the content of the stores in a cache."""
    return {path.name: contents(path) for path in cache.glob("*-*") if path.is_dir()}


@pytest.mark.full
def test_two_processes_build_the_store_of_one(tmp_path, monkeypatch):
    config = build_config(tmp_path)
    flags = [f"--config={config_file(config, tmp_path)}", f"--config.data.cache={tmp_path}/both"]
    finish(start(2, PROGRAM, *flags, devices=1))
    monkeypatch.setattr(text_files, "PART_BYTES", 300)
    make_task(config).rows()
    alone, both = stores(tmp_path / "cache"), stores(tmp_path / "both")
    assert alone == both and len(alone) == 3
    assert max(name for files in alone.values() for name in files) > "00005"


@pytest.mark.full
def test_an_error_in_the_part_of_another_process_ends_all(tmp_path):
    config = build_gpt(tmp_path)
    config.data.tokenizer_bytes = 300  # does not reach the fault
    text = tmp_path / "train.txt"
    text.write_bytes(b"the cat\n\n" * 100 + b"\n\xff\n" + b"a dog\n\n" * 9)
    errors = finish(start(2, PROGRAM, f"--config={config_file(config, tmp_path)}"), code=2)
    assert all(f"{text}:202: not UTF-8" in error for error in errors), errors
    assert not list(tmp_path.glob("cache/text-train-*/store.json"))


@pytest.mark.full
def test_a_cache_that_is_not_shared_is_an_error_of_all(tmp_path):
    flags = [f"--config={config_file(build_gpt(tmp_path), tmp_path)}"]
    own = {i: [f"--config.data.cache={tmp_path}/{i}"] for i in range(2)}
    errors = finish(start(2, PROGRAM, *flags, devices=1, own=own), code=2)
    assert all("is not there, which another worker has built" in error for error in errors), errors


def test_wrong_flags_of_beam(tmp_path, monkeypatch):
    config = config_file(build_gpt(tmp_path), tmp_path)
    options = "--beam_pipeline_options=region=R"
    refused(call("prepare", f"--config={config}", options), "needs --beam_runner=RUNNER")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"--beam_runner=X: .* pip install -e '.\[beam\]'"):
        store.Beam("X")


def failing(writer, part):
    if part == 3:
        raise UserError("file.txt:7: not UTF-8")
    return fill(writer, part)


def fill(writer, part):
    return counting([])(writer, part)


def build(cache, fill):
    content = store.Content(lambda: range(5), fill, lambda metadata: metadata[0], "pairs")
    return store.build(str(cache), "pairs", {}, 200, content).path


def test_beam_builds_the_store_of_one_process(tmp_path):
    pytest.importorskip("apache_beam")
    with store.using(store.Beam("DirectRunner")):
        with pytest.raises(UserError, match="^file.txt:7: not UTF-8$"):
            build(tmp_path / "beam", failing)
        assert not list(tmp_path.glob("beam/*/store.json"))
        assert len(list(tmp_path.glob("beam/*/*/store.json"))) == 4
        shared = build(tmp_path / "beam", fill)
    assert contents(shared) == contents(build(tmp_path / "alone", fill))


def test_tokenizers_reach_another_process():
    from transformer_jax.data import tokenizers

    for kind in ("unigram", "byte_bpe", "characters", "wordpiece"):
        tokenizer = tokenizers.train(["the cat sat on the mat"] * 9, kind, 300)
        other = pickle.loads(pickle.dumps(tokenizer))
        assert other.encode("the mat") == tokenizer.encode("the mat")
