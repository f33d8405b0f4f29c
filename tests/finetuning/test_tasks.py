"""Every task from BERT and from GPT: it learns, measures, predicts, goes on exactly, and refuses
what it can't read.
"""

import json
import math
import shutil

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from tests.finetuning.examples import FILES, build, pretrained
from transformer_jax.config import UserError, set_key
from transformer_jax.finetuning.encoder import fitted
from transformer_jax.runs import begin, record
from transformer_jax.runs.open import open_run
from transformer_jax.runs.resolve import make_task, resolve
from transformer_jax.runs.train import train
from transformer_jax.tasks.span import _most_central
from transformer_jax.training.loop import Program, run
from transformer_jax.training.optimizer import _by_depth
from transformer_jax.training.state import init_params

SCORES = {
    "classification": "accuracy",
    "pairs": "accuracy",
    "regression": "pearson",
    "tagging": "f1",
    "span": "f1",
    "choice": "accuracy",
}
LINES = {
    "classification": "the cat sat",
    "pairs": "the cat sat\tthe dog ran",
    "regression": "the cat sat",
    "tagging": "the cat sat",
    "span": "who ran?\tthe cat ran. a dog sat.",
    "choice": "a cat ran\tto the cat\tto the dog",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained")
    return {family: pretrained(folder, family) for family in ("bert", "gpt")}


@pytest.mark.parametrize(
    "kind, family",
    [
        ("pairs", "gpt"),
        *((kind, "bert") for kind in FILES if kind != "pairs"),
        *(
            pytest.param(kind, "bert" if kind == "pairs" else "gpt", marks=pytest.mark.slow)
            for kind in FILES
        ),
    ],
)
def test_it_learns_measures_and_predicts(kind, family, runs, tmp_path):
    steps = 200 if kind in ("pairs", "span") else 60
    config = build(
        tmp_path,
        kind,
        runs[family],
        train__num_steps=steps,
        train__eval_every=steps,
        checkpoint__every=steps,
        task__lm_weight=0.5 if family == "gpt" else 0.0,
    )
    found = train(config, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    assert (task.config.model.name, task.model.vocab_size) == (
        family,
        303 if family == "gpt" else 80,
    )
    scores = task.evaluate(params, "valid")
    assert scores["loss"] == pytest.approx(found["valid/loss"], rel=1e-4) and scores[
        SCORES[kind]
    ] == pytest.approx(found[f"valid/{SCORES[kind]}"], rel=1e-4)
    # what comes later in the row decides: not for such a GPT
    if kind not in ("pairs",) and not (kind == "span" and family == "gpt"):
        assert scores[SCORES[kind]] > 0.85
    if kind == "classification":
        assert list(scores["f1_by_class"]) == scores["confusion"]["labels"] == task.names
        counts = np.array(scores["confusion"]["counts"])
        assert counts.trace() / counts.sum() == pytest.approx(scores["accuracy"])
        assert np.mean(list(scores["f1_by_class"].values())) == pytest.approx(scores["macro_f1"])
    (alone,) = task.predict(params, [LINES[kind]])
    among = list(task.predict(params, [LINES[kind]] * 7))
    assert len(among) == 7 and among[3][0] == alone[0]
    for key, value in alone[1].items():
        if key == "probabilities":
            values = list(value.values()) if isinstance(value, dict) else value
            assert np.all(np.array(values) > 0) and (
                kind == "tagging" or sum(values) == pytest.approx(1)
            )
    if kind == "tagging":
        expected = [f"{word}/{tag}" for word, tag in zip(alone[1]["words"], alone[1]["tags"])]
        assert alone[0].split() == expected and "cat/B-PET" in expected
    assert json.dumps(alone[1])


def test_the_labels_are_kept_without_the_data(runs, tmp_path):
    train(build(tmp_path, "classification", runs["bert"], train__num_steps=1), tmp_path / "run")
    (tmp_path / "train.tsv").unlink()
    task, params = open_run(tmp_path / "run")
    ((label, found),) = task.predict(params, ["a cat"])
    assert label in found["probabilities"] and list(found["probabilities"]) == ["cat", "dog"]


def test_resuming_equals_running_straight(runs, tmp_path):
    def finish(folder, stops):
        for stop in stops:
            config = build(
                tmp_path,
                "classification",
                runs["bert"],
                model__name="bert",
                train__num_steps=stop,
                train__log_every=2,
                train__eval_every=100,
                checkpoint__every=2,
                task__head_dropout=0.3,
                task__group_by_length=4,
                optimizer__schedule="constant",
            )
            train(config, tmp_path / folder, overrides=[("model.dropout", "0.2")])
        return open_run(tmp_path / folder, "latest")

    task, straight = finish("straight", [6])
    assert task.model.dropout == 0.2
    jax.tree.map(np.testing.assert_array_equal, straight, finish("resumed", [4, 6])[1])


@pytest.mark.parametrize(
    "kind", ["classification", pytest.param("tagging", marks=pytest.mark.slow)]
)
def test_equal_losses_on_a_mesh(kind, runs, tmp_path):
    def first(**mesh):
        overrides = {f"mesh__{axis}": size for axis, size in mesh.items()}
        config = resolve(
            build(
                tmp_path, kind, runs["bert"], train__num_steps=3, train__log_every=1, **overrides
            ),
            tmp_path / "none",
        ).config
        task = make_task(config)
        folder = tmp_path / f"run{len(mesh)}"
        program = Program.of(config, task, jax.devices()[: math.prod(mesh.values()) or 1])
        run(config, task, folder, program, origin=begin.origin(config, folder))
        return [
            line["train/loss"]
            for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
            if "train/loss" in line
        ]

    np.testing.assert_allclose(first(data=2, fsdp=2, tensor=2), first(data=1), rtol=1e-5)


def test_keys_of_the_model_in_the_config_itself(runs, tmp_path):
    """They change the model of init_from as those of the command line do, which come after them."""
    config = lambda: build(
        tmp_path, "classification", runs["bert"], model__dropout=0.3, model__attention_dropout=0.2
    )
    model = resolve(config(), tmp_path / "none", [("model.attention_dropout", "0.4")]).config.model
    assert (model.dropout, model.attention_dropout, model.vocab_size) == (0.3, 0.4, 80)
    again = resolve(resolve(config(), tmp_path / "none").config, tmp_path / "none").config.model
    assert (again.dropout, again.attention_dropout, again.vocab_size) == (0.3, 0.2, 80)


def test_train_leaves_its_config_as_it_is(runs, tmp_path):
    """So the same config, with another init_from, trains the other model."""
    wide = pretrained(tmp_path, "bert", model__d_model=48)
    config = build(tmp_path, "classification", runs["bert"], train__num_steps=1)
    before = config.to_dict()
    train(config, tmp_path / "first", overrides=[("model.dropout", "0.2")])
    resolve(config, tmp_path / "none", [("model.dropout", "0.2")])
    assert config.to_dict() == before

    config.init_from = str(wide)
    train(config, tmp_path / "second")
    first, second = (record.read(tmp_path / name).config for name in ("first", "second"))
    assert (first.model.d_model, first.model.dropout) == (32, 0.2)
    assert (second.model.d_model, second.model.dropout) == (48, 0.0)
    assert (first.init_from, second.init_from) == (str(runs["bert"]), str(wide))
    assert first.task.labels == second.task.labels == ("cat", "dog")


def test_what_it_begins_from_is_read_as_a_record(runs, tmp_path):
    """An origin of an earlier version may lack keys; one of a newer format is refused."""
    origin = tmp_path / "origin"
    shutil.copytree(runs["bert"], origin)
    record = json.loads((origin / "config.json").read_text())
    del record["config"]["checkpoint"]["best_mode"], record["config"]["checkpoint"]["keep"]
    (origin / "config.json").write_text(json.dumps(record))
    config = build(tmp_path, "classification", origin, train__num_steps=1)
    train(config, tmp_path / "run")
    (origin / "config.json").write_text(json.dumps(record | {"checkpoint_format": 999}))
    with pytest.raises(UserError, match="written by a newer version"):
        train(config, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_a_run_without_its_origin_does_not_begin_anew(runs, tmp_path):
    config = resolve(build(tmp_path, "classification", runs["bert"]), tmp_path / "none").config
    with pytest.raises(ValueError, match="run needs its argument origin"):
        run(config, make_task(config), tmp_path / "run")


def test_going_on_needs_no_word_of_what_it_began_from(runs, tmp_path, monkeypatch):
    config = lambda steps, origin: build(tmp_path, "classification", origin, train__num_steps=steps)
    train(config(1, runs["bert"]), tmp_path / "run")
    unsaid = config(2, runs["bert"])
    unsaid.init_from = None
    train(unsaid, tmp_path / "run")
    monkeypatch.chdir(runs["bert"].parent)
    train(config(3, runs["bert"].name), tmp_path / "run")
    with pytest.raises(UserError, match="another config: init_from"):
        train(config(4, runs["gpt"]), tmp_path / "run")


def test_what_is_pretrained_is_used_unless_told_otherwise(runs, tmp_path):
    def begun(**overrides):
        config = build(
            tmp_path,
            "classification",
            runs["gpt"],
            train__num_steps=1,
            optimizer__learning_rate=0.0,
            **overrides,
        )
        train(config, tmp_path / f"run{len(overrides)}")
        return open_run(tmp_path / f"run{len(overrides)}")[1]["token_embed"]["embedding"]

    there = open_run(runs["gpt"])[1]["token_embed"]["embedding"]
    np.testing.assert_array_equal(begun()[:300], there)
    assert begun()[300:].std() > 0 and not np.array_equal(
        begun(train__pretrained=False, train__seed=1)[:300], there
    )


def test_a_head_is_for_its_own_task_and_labels(runs, tmp_path):
    """A fine-tuned run may begin another: a head that means something else stays behind, one with
    the same labels goes on, in its order.
    """
    first = build(
        tmp_path / "a",
        "classification",
        runs["bert"],
        train__num_steps=3,
        task__labels=("dog", "cat"),
    )
    train(first, tmp_path / "first")
    head = open_run(tmp_path / "first")[1]["head"]["out"]["kernel"]

    def begun(kind, **overrides):
        run = tmp_path / f"{kind}{len(overrides)}"
        train(
            build(
                tmp_path / f"b{kind}",
                kind,
                tmp_path / "first",
                train__num_steps=1,
                optimizer__learning_rate=0.0,
                **overrides,
            ),
            run,
        )
        return open_run(run)

    task, params = begun("classification")
    assert task.names == ["dog", "cat"]
    np.testing.assert_array_equal(params["head"]["out"]["kernel"], head)
    for kind, overrides in (("span", {}), ("classification", dict(task__labels=("cat", "dog")))):
        assert not np.array_equal(begun(kind, **overrides)[1]["head"]["out"]["kernel"], head)


def test_new_tokens_begin_as_initialised_in_a_padded_vocabulary(runs, tmp_path):
    from tests.conftest import build_gpt
    from transformer_jax.training.state import init_params

    before = make_task(build_gpt(tmp_path / "gpt", model__vocab_multiple=64))
    (tmp_path / "padded").mkdir()
    record.create(tmp_path / "padded", before, init_params(before))
    train(
        build(
            tmp_path,
            "classification",
            tmp_path / "padded",
            train__num_steps=1,
            optimizer__learning_rate=0.0,
        ),
        tmp_path / "run",
    )
    table = open_run(tmp_path / "run")[1]["token_embed"]["embedding"]
    assert (
        table.shape[0] == 320
        and np.abs(table[300:303]).min(axis=-1).all()
        and not table[303:].any()
    )


def test_words_keep_their_spaces_for_a_gpt(runs, tmp_path):
    task = make_task(resolve(build(tmp_path, "tagging", runs["gpt"]), tmp_path / "none").config)
    (part,) = task._parts([(("the", "cat", "sat"), [0, 0, 0])])
    assert task.tokenizer.decode([part.ids]) == ["the cat sat"]


def test_a_frozen_encoder_stays_as_it_was(runs, tmp_path):
    train(
        build(tmp_path, "tagging", runs["bert"], train__num_steps=3, task__frozen=True),
        tmp_path / "run",
    )
    after, before = open_run(tmp_path / "run")[1], open_run(runs["bert"])[1]
    np.testing.assert_array_equal(
        after["encoder"]["layers"]["mlp"]["wi"]["kernel"],
        before["encoder"]["layers"]["mlp"]["wi"]["kernel"],
    )


@pytest.mark.parametrize(
    "features",
    [
        "last",
        "sum-all",
        *(
            pytest.param(other, marks=pytest.mark.slow)
            for other in ("embeddings", "second-to-last")
        ),
    ],
)
def test_an_lstm_learns_from_a_frozen_encoders_states(features, runs, tmp_path):
    config = build(
        tmp_path,
        "tagging",
        runs["bert"],
        task__features=features,
        task__lstm_width=16,
        optimizer__learning_rate=2e-2,
    )
    assert train(config, tmp_path / "run")["valid/f1"] > 0.85
    after, before = open_run(tmp_path / "run")[1], open_run(runs["bert"])[1]
    np.testing.assert_array_equal(
        after["token_embed"]["embedding"], before["token_embed"]["embedding"]
    )


def test_features_that_the_model_lacks(runs, tmp_path):
    for family, features, message in (
        ("gpt", "last", "for bert"),
        ("bert", "concat-last-four", "has 2 layers"),
    ):
        with pytest.raises(UserError, match=message):
            train(
                build(tmp_path, "tagging", runs[family], task__features=features), tmp_path / "run"
            )


def test_the_order_of_a_symmetric_pair_means_nothing(runs, tmp_path):
    train(
        build(tmp_path, "pairs", runs["gpt"], train__num_steps=2, task__symmetric=True),
        tmp_path / "run",
    )
    task, params = open_run(tmp_path / "run")
    one, other = task.predict(params, ["the cat sat\ta dog", "a dog\tthe cat sat"])
    assert one[1]["probabilities"] == pytest.approx(other[1]["probabilities"], rel=1e-4)


def test_layers_learn_less_the_deeper_they_are():
    ones = {
        "token_embed": {"embedding": np.ones((3, 2))},
        "encoder": {"layers": {"mlp": {"kernel": np.ones((2, 4))}}},
        "head": {"kernel": np.ones(5)},
    }
    scaled = _by_depth(ones, 0.5)
    np.testing.assert_allclose(
        scaled["encoder"]["layers"]["mlp"]["kernel"], [[0.25] * 4, [0.5] * 4]
    )
    assert (scaled["head"]["kernel"] == 1).all() and (
        scaled["token_embed"]["embedding"] == 0.125
    ).all()


def test_two_texts_fit():
    assert fitted([1] * 3, [2] * 3, 10) == ([1] * 3, [2] * 3)
    for first, second in ((20, 3), (3, 20), (20, 20), (9, 4)):
        a, b = fitted([1] * first, [2] * second, 10)
        assert (
            len(a) + len(b) == 10
            and abs(len(a) - len(b)) <= abs(first - second)
            and len(a) >= min(first, 5)
            and len(b) >= min(second, 5)
        )


def test_parts_of_a_long_context(runs, tmp_path):
    """Every token is in a part, one part alone counts it, and the answer is found where it wholly
    is.
    """
    config = resolve(build(tmp_path, "span", runs["bert"]), tmp_path / "none").config
    task = make_task(config)
    context = " ".join(["the cat sat on the mat."] * 12) + " a dog ran."
    start = context.index("dog")
    parts = task._parts([("who ran?", context, (("dog", start),))])
    assert len(parts) > 3 and sum(part.central.sum() for part in parts) == len(
        task.tokenizer.encode([context])[0]
    )
    holding = [part for part in parts if part.target]
    assert holding and all(
        context[part.spans[part.target[0]][0] : part.spans[part.target[1]][1]] == "dog"
        for part in holding
    )
    assert all(
        task.row(part)["first"] == (0 if part.target is None else part.begin + part.target[0])
        for part in parts
    )
    assert _most_central([0, 4], 6, 10).tolist() == [0] * 5 + [1] * 5


def test_long_sentences_are_tagged_whole(runs, tmp_path):
    config = build(tmp_path, "tagging", runs["bert"], train__num_steps=2)
    (tmp_path / "valid.conll").write_text(
        "\n".join(["cat\tB-PET", "sat\tO"] * 40) + "\n\ndog\tB-PET\n"
    )
    train(config, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    examples = task._examples("valid")
    assert [len(part.tags) for part in examples if part.sentence == 1] == [1] and sum(
        len(part.tags) for part in examples
    ) == 81
    assert 0 <= task.evaluate(params, "valid")["accuracy"] <= 1


WRONG = [  # kind, file, its content, keys, message
    (
        "classification",
        "valid.tsv",
        "cow\tthe cat\n",
        {},
        "valid.tsv:1: unknown label 'cow'; the labels are: cat, dog",
    ),
    (
        "classification",
        "train.tsv",
        "cat\tthe cat\nthe cat\n",
        {},
        "train.tsv:2: 1 column, column 2 is asked for",
    ),
    ("classification", "train.tsv", "cat\tthe cat\ndog\t \n", {}, "train.tsv:2: an empty text"),
    ("classification", "train.tsv", "cat\tthe cat\ncat\tthe dog\n", {}, "only one label, 'cat'"),
    (
        "classification",
        "train.tsv",
        "label\ttext\ncat\tthe cat\n",
        dict(task__text="words", task__label="label"),
        "train.tsv:1: no column 'words' in the header: label, text",
    ),
    ("classification", "train.tsv", "", {}, "the file is empty"),
    ("classification", "train.tsv", "cat\tx\n\ndog\ty\n", {}, "train.tsv:2: an empty line"),
    (
        "classification",
        "train.tsv",
        "cat\tx\n",
        dict(task__label="0"),
        "columns are numbered from 1",
    ),
    ("regression", "train.csv", "text,score\n", {}, "no example in it"),
    ("regression", "train.csv", "text,score\na,nan\n", {}, "train.csv:2: the label 'nan'"),
    (
        "regression",
        "train.csv",
        'text,score\n"a\nb",1\nc,d,2\n',
        {},
        "train.csv:4: 3 columns, the header has 2",
    ),
    ("regression", "train.csv", 'text,score\n"a,1\n', {}, "train.csv:2: not CSV"),
    ("pairs", "train.jsonl", "\n", {}, "no label in the training examples"),
    (
        "pairs",
        "train.jsonl",
        '{"a": null, "b": "x", "same": 1}\n',
        {},
        "train.jsonl:1: 'a' is null",
    ),
    ("tagging", "train.conll", "the x O\ncat O\n", {}, "train.conll:2: 2 columns, 3 before"),
    (
        "tagging",
        None,
        "",
        dict(task__features="last", task__lstm_width=3),
        "config.task.lstm_width=3",
    ),
    ("span", None, "", dict(task__n_best=0), "config.task.n_best=0"),
    ("classification", None, "", dict(task__head_dropout=1.0), "head_dropout=1.0"),
    (
        "span",
        "train.json",
        '{"data": [{"paragraphs": [{"context": "the cat", "qas": [{"id": "7", "question": null, "answers": []}]}]}]}',
        {},
        "question 7: question, context",
    ),
    ("classification", "train.tsv", "cat\tx\n", dict(task__text="text"), "either all are names"),
    (
        "regression",
        "train.csv",
        "text,score\nthe cat,high\n",
        {},
        "train.csv:2: the label 'high' is not a number",
    ),
    ("pairs", "train.jsonl", '{"a": "x"}\n', {}, "train.jsonl:1: no key 'b'"),
    ("pairs", "train.jsonl", "{\n", {}, "train.jsonl:1: not JSON"),
    (
        "regression",
        "train.csv",
        "text,score\nthe cat,1e39\n",
        {},
        "train.csv:2: the label '1e39' is not a number",
    ),
    ("choice", "train.tsv", "a\tb\tc\t" + "9" * 5000 + "\n", {}, "must be a number from 0 to 1"),
    ("span", "train.json", "\ufeff[]", {}, "not in SQuAD's form"),
    ("tagging", "train.conll", "-DOCSTART- -X- O\n\n", {}, "no example in it"),
    (
        "tagging",
        "train.conll",
        "the\tO\ncat\n",
        {},
        "train.conll:2: a word and its tag are asked for",
    ),
    ("tagging", "valid.conll", "the\tB-COW\n", {}, "valid.conll:1: unknown tag 'B-COW'"),
    (
        "choice",
        "train.tsv",
        "a\tb\tc\t2\n",
        {},
        "train.tsv:1: label '2': must be a number from 0 to 1",
    ),
    ("choice", "train.tsv", "a\t\tc\t1\n", {}, "train.tsv:1: an empty choice"),
    (
        "span",
        "train.json",
        '{"data": [{"paragraphs": [{"context": "the cat", "qas": [{"id": "7", "question": "who?", "answers": [{"text": "dog", "answer_start": 4}]}]}]}]}',
        {},
        "question 7: the answer 'dog' is not at character 4",
    ),
    (
        "span",
        "train.json",
        '{"data": [{"paragraphs": [{"context": "the cat", "qas": [{"id": "7", "question": "who?", "answers": []}]}]}]}',
        {},
        "question 7: no answer",
    ),
    ("span", "train.json", "[]", {}, "not in SQuAD's form"),
    ("span", None, "", dict(task__stride=100), "config.task.stride=100"),
    ("pairs", None, "", dict(task__lm_weight=0.5), "no language model"),
    ("classification", None, "", dict(task__length=100), "config.model.max_length=64"),
    ("classification", None, "", dict(task__symmetric=True), "config.task.symmetric needs"),
    ("choice", None, "", dict(task__choices=("2",)), "must name at least two columns"),
    ("choice", "train.tsv", " \tb\tc\t1\n", {}, "train.tsv:1: an empty context"),
    ("choice", "train.tsv", "a\tb\tc\t5\n", dict(task__choices=(2, 3)), "train.tsv:1: label '5'"),
    (
        "tagging",
        "valid.conll",
        "the\t2\n",
        dict(task__labels=(0, 1)),
        "valid.conll:1: unknown tag '2'; the tags are: 0, 1",
    ),
    (
        "pairs",
        "train.jsonl",
        '{"a": "x \\ud83d", "b": "y", "same": 1}\n',
        {},
        "train.jsonl:1: half a character",
    ),
    ("span", "train.json", '{"data": "\\ud83d"}', {}, "train.json: half a character"),
    (
        "pairs",
        "list.json",
        '[{"a": "x", "b": "y", "same": 1},\n {"a": "x"}]',
        dict(data__train_files="{}/list.json"),
        "list.json: item 2: no key 'b'",
    ),
    (
        "pairs",
        "lines.json",
        '{"a": "x"}\n',
        dict(data__train_files="{}/lines.json"),
        "lines.json:1: no key 'b'",
    ),
    ("choice", "train.tsv", "a\tb\tc\t5\n", dict(task__context=(1,)), "train.tsv:1: label '5'"),
    ("choice", None, "", dict(task__label="3"), "config.task.label=3: that column is a text"),
    (
        "classification",
        None,
        "",
        dict(task__pair="1"),
        "config.task.label=1: that column is a text",
    ),
    ("classification", None, "", dict(model__vocab_size=20), "20"),
]


@pytest.mark.parametrize(
    "kind, file, content, keys, message", WRONG, ids=[message[:40] for *_, message in WRONG]
)
def test_what_can_not_be_read_is_refused(kind, file, content, keys, message, runs, tmp_path):
    keys = {
        key: value.format(tmp_path / "data") if isinstance(value, str) else value
        for key, value in keys.items()
    }
    config = build(tmp_path / "data", kind, runs["bert"], **keys)
    if file:
        (tmp_path / "data" / file).write_text(content)
    with pytest.raises(UserError) as refused:
        train(config, tmp_path / "run")
    assert (
        message in str(refused.value)
        and "\n" not in str(refused.value)
        and not (tmp_path / "run").exists()
    )


def test_rows_that_are_not_whole_are_left_out_where_asked(runs, tmp_path, capsys):
    config = build(tmp_path, "classification", runs["bert"], task__skip_malformed=True)
    (tmp_path / "valid.tsv").write_text("cat\tthe cat\ndog\n\ndog\t \ndog\ta dog\n")
    task = make_task(resolve(config, tmp_path / "none").config)
    assert len(task._examples("valid")) == task.count("valid") == 2
    said = capsys.readouterr().err
    assert (
        "valid.tsv: 2 rows of another number of columns are left out" in said
        and "1 rows without a text are left out" in said
    )
    (tmp_path / "valid.tsv").write_text("cat\t \ndog\t \n")
    with pytest.raises(UserError, match="valid.tsv:1: an empty text, as in all other rows"):
        make_task(resolve(config, tmp_path / "none").config)._examples("valid")


def test_what_looks_like_a_header_is_said(runs, tmp_path, capsys):
    config = build(tmp_path, "classification", runs["bert"])
    (tmp_path / "train.tsv").write_text("label\ttext\n" + (tmp_path / "train.tsv").read_text())
    assert (
        resolve(config, tmp_path / "none").config.task.labels == ("cat", "dog", "label")
        and "the only one with the label 'label': if it is a header" in capsys.readouterr().err
    )


def test_choices_that_begin_alike_are_predicted_as_trained(runs, tmp_path):
    config = build(
        tmp_path,
        "choice",
        runs["bert"],
        task__beginning="2",
        task__choices=("3", "4"),
        task__label="5",
    )
    (tmp_path / "train.tsv").write_text("the dog ran\ta man sat\ton the mat\tto the cat\t1\n" * 4)
    task = make_task(resolve(config, tmp_path / "none").config)
    (asked,) = task.unlabelled([(1, "the dog ran\ta man sat\ton the mat\tto the cat")])
    assert asked.examples[0][0] == task._examples("train")[0][0]
    with pytest.raises(UserError, match="line 1: must hold a context, a beginning and 2 choices"):
        task.unlabelled([(1, "the dog ran\ta man sat on the mat\ta man sat to the cat")])


def test_the_work_counted_is_the_work_done(runs, tmp_path):
    """A vocabulary that nothing meets costs nothing; an LSTM on a frozen encoder does."""
    task = lambda kind, family, **keys: make_task(
        resolve(
            build(tmp_path / f"{kind}{len(keys)}", kind, runs[family], **keys), tmp_path / "none"
        ).config
    )
    plain, both = task("classification", "gpt"), task("classification", "gpt", task__lm_weight=0.5)
    assert both.flops() - plain.flops() == 3 * 2 * 32 * plain.model.d_model * plain.model.vocab_size
    frozen, recurrent = (
        task("tagging", "bert", task__frozen=True),
        task("tagging", "bert", task__features="last", task__lstm_width=8),
    )
    # directions, gates, width of a direction, inputs
    first, second = 2 * 4 * 4 * (frozen.model.d_model + 4), 2 * 4 * 4 * (8 + 4)
    assert recurrent.flops() - frozen.flops() == 3 * 32 * 2 * (first + second)


@pytest.mark.parametrize(
    "kind, line, message",
    [
        ("classification", "a\tb", "line 2: must hold 1 text, not 2"),
        ("pairs", "the cat", "line 2: must hold 2 texts"),
        ("pairs", "the cat\t ", "line 2: must hold 2 texts"),
        ("span", "who?", "line 2: must hold a question and its context"),
        ("choice", "a\tb", "line 2: must hold a context and 2 choices"),
    ],
)
def test_lines_that_can_not_be_predicted(kind, line, message, runs, tmp_path):
    config = resolve(build(tmp_path, kind, runs["bert"]), tmp_path / "none").config
    with pytest.raises(UserError, match=message):
        list(make_task(config).predict(None, [LINES[kind], line]))


@pytest.mark.parametrize("kind", ["pairs", "span", "choice"])
def test_two_texts_need_two_token_types(kind, runs, tmp_path):
    config = ConfigDict(resolve(build(tmp_path, kind, runs["bert"]), tmp_path / "none").config)
    config.model.num_token_types = 1
    with pytest.raises(UserError, match="num_token_types=1: two texts in a row need 2"):
        make_task(config)


EMPTY = {
    "classification": {"label": None, "probabilities": None},
    "regression": {"value": None},
    "tagging": {"words": [], "tags": [], "probabilities": []},
    "span": {"answer": None, "n_best": []},
    "choice": {"choice": None, "probabilities": None},
}


@pytest.mark.parametrize("kind", EMPTY)
def test_empty_and_long_lines(kind, runs, tmp_path, capsys):
    """The empty ones stay empty, and change nothing of the others; what is too long is named."""
    config = resolve(build(tmp_path, kind, runs["bert"]), tmp_path / "none").config
    task = make_task(config)
    params, line = init_params(task), LINES[kind]
    found = list(task.predict(params, ["", line, "  ", line, ""]))
    (alone,) = task.predict(params, [line])
    assert [each.text for each in found] == ["", alone.text, "", alone.text, ""]
    assert found[0] == found[2] == found[4] == ("", {"text": "", **EMPTY[kind]})
    assert list(task.predict(params, [])) == [] and list(task.predict(params, [""])) == found[:1]
    capsys.readouterr()

    lines = [line, line.replace("cat", "cat " * 40), line]
    found = list(task.predict(params, lines))
    said = capsys.readouterr().err
    assert [found[0].text, found[2].text] == [alone.text] * 2
    if kind == "span":
        assert "warning" not in said
    else:
        assert "warning: line 2 is longer than config.task.length=32 tokens" in said
        skipped = list(task.predict(params, lines, long="skip"))
        assert [each.text for each in skipped] == [alone.text, "", alone.text]
        with pytest.raises(UserError, match="line 2: longer than config.task.length=32"):
            task.predict(params, lines, long="refuse")
    wrong = "split" if kind in ("classification", "regression", "choice") else "truncate"
    with pytest.raises(UserError, match=f"long='{wrong}': must be one of"):
        task.predict(params, lines, long=wrong)


def test_a_long_sentence_has_all_its_tags(runs, tmp_path):
    config = resolve(build(tmp_path, "tagging", runs["bert"]), tmp_path / "none").config
    task = make_task(config)
    words = ["the", "cat", "sat", "to", "a", "dog"] * 20
    found, _ = task.predict(init_params(task), [" ".join(words), "a dog"])
    tags = [pair.rpartition("/")[2] for pair in found.text.split()]
    assert found.details["words"] == words and found.details["tags"] == tags
    assert len(found.details["tags"]) == len(found.details["probabilities"]) == len(words)


def test_runs_of_the_wrong_kind(runs, tmp_path):
    config = build(tmp_path, "classification", runs["bert"])
    set_key(config, "init_from", str(tmp_path / "nothing"))
    with pytest.raises(UserError, match="no run here"):
        train(config, tmp_path / "run")
    set_key(config, "init_from", "tests/fixtures/format_1")
    with pytest.raises(UserError, match="fine-tuning is for bert and gpt"):
        train(config, tmp_path / "run")
    with pytest.raises(UserError, match="holds a masked_lm run, not a classification one"):
        train(config, runs["bert"])
