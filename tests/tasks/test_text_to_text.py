"""Text to text: columns, prefixes, long texts, scores and their baseline, two runs compared."""

import json

import pytest

from tests import examples
from tests.conftest import updates
from tests.programs import call
from tests.tasks.conftest import trained
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.inference import translating
from transformer_jax.runs.spec import make_task, resolve
from transformer_jax.scores import predictions

SIZES = {
    "model.vocab_size": 300,
    "model.d_model": 32,
    "model.d_ff": 64,
    "model.num_heads": 2,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.max_length": 64,
    "model.init_std": 0.1,
    "model.dropout": 0.0,
    "task.source_length": 24,
    "task.target_length": 12,
    "data.tokenizer": "roberta_bpe",
    "decode.max_extra": 8,
    "decode.batch": 8,
    "decode.beam": 2,
    "train.batch": 16,
    "task.label_smoothing": 0.0,
    "train.num_steps": updates(120),
    "train.eval_every": updates(120),
    "checkpoint.every": updates(120),
    "optimizer.learning_rate": 0.01,
    "optimizer.warmup_steps": 20,
}


def build(folder, **overrides):
    config = configs.experiment(model={"name": "bart"}, task={"name": "text_to_text"})
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    for key, value in (SIZES | {"data.cache": str(folder / "cache")} | changes).items():
        configs.set_key(config, key, value)
    if not config.data.train_files and not config.data.corpus:
        for key, value in examples.write(config, folder / "examples").items():
            configs.set_key(config, key, value)
    configs.validate(config)
    return config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that has learned to write the first sentence of two."""
    folder = tmp_path_factory.mktemp("text_to_text")
    changes = dict(task__prefix="shorten: ", task__scores=("rouge", "bleu", "exact_match"))
    return trained(build(folder, task__lead_sentences=1, **changes), folder)


@pytest.mark.full
def test_a_run_learns_and_is_scored_with_its_baseline(run):
    task, params = run.task, run.params
    assert run.scores["valid/exact_match"] > 0.9 and run.scores["valid/rougeL"] > 90
    results = task.evaluate(params, "valid")
    assert results["examples"] == 16 and "files" in results["data"]
    for name in ("rouge1", "rougeLsum", "bleu", "exact_match"):
        low, high = results["intervals"][name]
        assert low <= results[name] <= high
    # The baseline has a full stop that the targets lack.
    assert results["lead"]["rougeL"] == 100 and results["lead"]["exact_match"] == 0
    own = task.split_outputs(params, "valid")
    assert own.sources[1] == "the dog sat on the mat. It is so."
    measure = task.measures[0]
    expected = predictions.scores(measure, measure.statistics(own.outputs, own.references))
    assert expected.items() <= results.items()


def test_a_line_is_read_with_the_prefix_and_cut_as_in_training(run, capsys):
    task, params = run.task, run.params
    encode = task.tokenizer.source.encode
    lines = ["the cat ran on the mat. It is so.", "", "the dog sat on the mat. " * 9]
    (best, second), empty, (cut, _) = task.translate(params, lines, 2)
    assert best.score > second.score and empty[0].text == "" and cut.text
    assert "line 3 is longer than the 22 tokens" in capsys.readouterr().err
    # The rows of training hold the same ids: <s> prefix source </s>.
    rows = task.rows()
    row = rows.train.phases[0].components[0].rows([(0, 0)])[0]
    first = row["source"][row["source_segment_ids"] == 1].tolist()
    sources = [source for source, _ in task.texts.text("train")]
    assert first in [
        task.tokenizer.source.framed(encode("shorten: " + source)[:22]) for source in sources
    ]
    with pytest.raises(UserError, match="line 3: longer than the 22 tokens"):
        list(task.translate(params, lines, long="refuse"))


def test_long_texts_are_cut_in_rows_and_whole_in_scores(tmp_path, capsys):
    (tmp_path / "long.jsonl").write_text(
        json.dumps({"text": "a cat\n ran. " * 20, "summary": "the dog " * 20})
        + '\n{"text": "a", "summary": "b"}\n{"text": "", "summary": "b"}\n'
    )
    files = str(tmp_path / "long.jsonl")
    config = build(
        tmp_path,
        data__train_files=files,
        data__test_files=files,
        task__source="text",
        task__target="summary",
        data__tokenizer="characters",
    )
    task = make_task(config)
    rows = task.rows().train.batch(0, [0, 1])
    assert "cut 1 over-long, dropped 1 empty" in capsys.readouterr().err
    filled = [(rows[f"{side}_segment_ids"] > 0).sum(axis=1) for side in ("source", "target")]
    assert sorted(zip(*filled)) == [(2, 2), (24, 12)]
    assert set(rows["labels"][[0, 1], filled[1] - 1]) == {task.tokenizer.target.eos_id}
    pair = next(iter(task.texts.text("test")))
    assert pair == (" ".join(["a cat ran."] * 20), " ".join(["the dog"] * 20))
    assert task.texts.text("valid") is None and not task.evaluations()


def test_two_runs_are_compared_on_the_same_texts(run, tmp_path):
    done = call("evaluate", f"--workdir={run.workdir}", f"--against={run.workdir}")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["examples"] == 16 and result["against"] == str(run.workdir)
    assert result["scores"]["rougeL"]["difference"] == 0
    assert result["scores"]["bleu"]["p_value"] == 1

    own = run.task.split_outputs(run.params, "valid")
    right, worse = (own._replace(outputs=outputs) for outputs in (own.references, ["the"] * 16))
    compared = translating.comparison(run.task.measures, right, worse)
    assert compared["rouge1"]["p_value"] < 0.01 and compared["rouge1"]["interval"][0] > 0
    for other in (
        own._replace(references=["the"] * 16),
        own._replace(sources=own.sources[1:]),
    ):
        with pytest.raises(UserError, match="the (sources|references) of the two runs differ"):
            translating.comparison(run.task.measures, own, other)


@pytest.mark.full
def test_a_run_takes_the_model_and_the_tokenizer_of_another(run, tmp_path):
    """The config names the family alone. Without an earlier run it gives the sizes itself."""
    config = build(tmp_path)
    own = resolve(config, tmp_path / "own", {"model.d_ff": 48})
    assert (own.config.model.d_ff, own.config.model.d_model) == (48, 32) and own.origin is None
    lengths = {"source_length": 24, "target_length": 12}
    sections = dict(model={"name": "t5"}, task={"name": "text_to_text"} | lengths)
    resumed = configs.experiment(**sections, init_from=str(run.workdir))
    resumed = resolve(resumed, tmp_path / "next", {"model.dropout": 0.3})
    model = resumed.config.model
    assert (model.name, model.d_model, model.dropout) == ("bart", 32, 0.3) and resumed.origin
    assert resumed.task().tokenizer.fingerprint() == run.task.tokenizer.fingerprint()


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(task__scores=("rogue",)), "config.task.scores: 'rogue' must be one of rouge, bleu"),
        (dict(task__lead_sentences=-1), "config.task.lead_sentences=-1: must be at least 0"),
        (dict(data__corpus="grammar"), "has no sources and targets; must be one of functions"),
        (
            dict(data__corpus="functions", data__train_files="a.tsv"),
            "config.data.corpus=functions and config.data.train_files: name one source",
        ),
    ],
)
def test_a_wrong_config_is_refused(changes, message, tmp_path):
    with pytest.raises(UserError, match=message):
        _ = make_task(build(tmp_path, **changes)).texts.text("train")
