"""The measurements on one GPU: their rehearsal on a CPU, and what happens to parts that fail."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"
has_torch = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


@pytest.fixture(scope="module")
def accelerator():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import accelerator

        yield accelerator


def rehearse(out: pathlib.Path, parts: list[str]) -> subprocess.CompletedProcess:
    program = str(BENCHMARKS / "accelerator.py")
    command = [sys.executable, program, "--rehearse", f"--out={out}", *parts]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


# {part: {case: figures that it must have}}
FIGURES = {
    "correctness": {
        "card": ["device", "product_tflops", "copy_gb_per_second"],
        "GPT, dropout": ["loss", "gradient_norm", "bfloat16_loss_error", "bfloat16_gradient_error"],
    },
    "gpt2_124m": {
        "inline, profiled": ["tokens_per_second", "tflops", "loss", "dry_run_gb", "kernels"]
    },
    "attention": {
        "packed": ["kernel", "cudnn_in_the_program", "errors", "milliseconds"],
        "packed, dropout": ["kernel", "cudnn_in_the_program", "errors", "milliseconds"],
    },
    "bert_large": {"scanned": ["tokens_per_second", "compile_seconds", "custom_calls"]},
    "resume": {"by default": ["killed_after_checkpoint", "continued_equals_whole"]},
    "transformer_big": {"inline": ["tokens_per_second", "trace_seconds"]},
    "decoding": {"GPT-2, 32 texts": ["tokens_per_second"], "beam 4": ["tokens_per_second"]},
    "recurrence": {"LSTM and attention": ["milliseconds_of"]},
    "compilation": {"GPT-2, 48 layers": ["layers", "compile_seconds", "cached_compile_seconds"]},
}


# The part "resume", whose three runs take a third of the time, is left to --full. That a stopped
# run continues as if it had not been is also tested in tests/training/test_stop.py.
@pytest.mark.parametrize(
    "parts",
    [
        [part for part in FIGURES if part != "resume"],
        pytest.param(["resume"], marks=pytest.mark.full),
    ],
    ids=["most", "resume"],
)
def test_rehearsal(parts, tmp_path):
    """Every part writes its file; a second call measures nothing again."""
    done = rehearse(tmp_path, parts)
    log = tmp_path / "log.txt"
    assert done.returncode == 0, done.stdout + done.stderr + log.read_text()[-2000:]
    files = {path: path.read_bytes() for path in tmp_path.glob("*.json")}
    records = {record["part"]: record for record in map(json.loads, files.values())}
    assert {*records} == {*parts}
    for part in parts:
        assert records[part]["versions"]["jax"] and len(records[part]["sources"]) == 16
        for case, figures in FIGURES[part].items():
            row = records[part]["cases"][case]
            assert all(row[figure] is not None for figure in figures), (part, case, row)
            assert row.get("ok", True), (part, case, row)
    if "resume" in parts:
        assert records["resume"]["cases"]["by default"]["killed_after_checkpoint"] == 80
    else:
        peer = records["gpt2_124m"]["cases"]["torch"]
        skipped = "torch is not installed"
        assert peer["tokens_per_second"] if has_torch else peer["skipped"] == skipped

    again = rehearse(tmp_path, parts)
    assert again.returncode == 0
    assert again.stdout.count("measured before") == len(parts)
    assert files == {path: path.read_bytes() for path in tmp_path.glob("*.json")}


def fake_parts(accelerator) -> dict:
    def case(function, process="jax"):
        return accelerator.Case(function, process)

    def fails(tiny):
        raise ValueError("out of order")

    return {
        "one": accelerator.Part(5, {"bad": case(fails), "good": case(lambda tiny: {"ok": True})}),
        "two": accelerator.Part(1, {"slow": case(None), "quick": case(None, "jax, second")}),
        "three": accelerator.Part(5, {"crash": case(None), "wrong": case(None)}),
    }


# What the processes of fake parts do; {rows} is their file.
SCRIPTS = {
    "slow": "import time; time.sleep(60)",
    "quick": 'print(\'["two", "quick", {{"ok": true}}]\', file=open({rows!r}, \'a\'))',
    "crash": "import os; os.abort()",
}


@pytest.mark.full
def test_a_part_that_fails_is_named_and_the_others_run(accelerator, tmp_path, monkeypatch, capsys):
    parts = fake_parts(accelerator)
    monkeypatch.setattr(accelerator, "RESULTS", tmp_path / "none")
    monkeypatch.setattr(accelerator.harness, "gpu", lambda: "NVIDIA H100 80GB HBM3, 580.1")
    monkeypatch.setattr(accelerator.harness, "on_gpu", lambda library: True)
    monkeypatch.setattr(accelerator, "_rows", None)

    def start(task, log):
        _, name = task["cases"][0]
        script = SCRIPTS.get(name, "pass").format(rows=task["rows"])
        if name == "bad":
            accelerator.work(task, parts)
        return subprocess.Popen([sys.executable, "-c", script], start_new_session=True)

    records = accelerator.Records(parts, tmp_path / "out", tiny=False)
    accelerator.measure(records, parts, start)
    rows = records.rows
    assert rows["one"]["bad"]["failed"] == "ValueError: out of order"
    assert rows["one"]["good"]["ok"]
    assert rows["two"]["slow"]["failed"] == "the limit of time was reached"
    assert rows["two"]["quick"] == {"ok": True}
    assert "exit code -6" in rows["three"]["crash"]["failed"]
    assert accelerator.summarize(records, parts) == 1
    err = capsys.readouterr().err
    assert "failed or wrong: one: bad" in err and "failed or wrong: three: wrong" in err

    # What failed is measured again, the rest is read from the files.
    names = {path.name for path in (tmp_path / "out").glob("*.json")}
    assert names == {f"{part}_nvidia_h100_80gb_hbm3.json" for part in parts}
    later = accelerator.Records(parts, tmp_path / "out", tiny=False)
    assert [later.missing(part) for part in parts] == [["bad"], ["slow"], ["crash", "wrong"]]
    monkeypatch.setattr(accelerator, "sources", lambda: "others")
    changed = accelerator.Records(parts, tmp_path / "out", tiny=False)
    assert changed.missing("one") == ["bad", "good"]


def test_limits(accelerator):
    """The first three parts fit four minutes, and all of them thirteen."""
    seconds = [part.seconds for part in accelerator.PARTS.values()]
    assert sum(seconds[:3]) <= 240 and sum(seconds) <= 780


def test_mistakes(accelerator, monkeypatch, capsys):
    monkeypatch.setattr(accelerator.harness, "gpu", lambda: "")
    for arguments, message in {
        (): "nvidia-smi names no GPU; --rehearse tries all of it on a CPU",
        ("gpt",): "no part 'gpt'; the parts: correctness,",
    }.items():
        monkeypatch.setattr(sys, "argv", ["accelerator.py", *arguments])
        with pytest.raises(SystemExit) as caught:
            accelerator.main()
        assert caught.value.code == 2 and message in capsys.readouterr().err


def test_the_wheels_and_the_checkout_stay_within_the_limit(accelerator, tmp_path, monkeypatch):
    import wheelhouse

    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for name, count in {"code.py": 100, "ignored.bin": 1000, "w/a.whl": 30, "w/b.whl": 40}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(count))
    (tmp_path / ".gitignore").write_text("*.bin\n")
    # Wheels count once, whether git ignores them or not.
    assert wheelhouse.size(tmp_path / "w", tmp_path) == (70, 106)
    (tmp_path / ".gitignore").write_text("/w\n*.bin\n")
    assert wheelhouse.size(tmp_path / "w", tmp_path) == (70, 109)
    monkeypatch.setattr(wheelhouse, "LIMIT", 178)
    with pytest.raises(SystemExit, match=r"MiB; the largest files|largest files: code.py"):
        wheelhouse.size(tmp_path / "w", tmp_path)


def test_the_wheels_are_releases_that_the_package_allows(accelerator):
    import wheelhouse
    from packaging.requirements import Requirement

    text = (ROOT / "setup.py").read_text()
    for name, (release, module) in wheelhouse.WHEELS.items():
        for line in text.splitlines():
            if line.strip().startswith(f'"{name}>'):
                assert release in Requirement(line.split('"')[1]).specifier
        assert importlib.util.find_spec(module), name
