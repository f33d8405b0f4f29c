"""Conversion of fine-tuned heads from and to Hugging Face checkpoints."""

import json

import jax
import numpy as np
import pytest
import tokenizers as huggingface

from tests.conversion.checkpoints import copied, random_run, read_json, refused, rewrite, weights
from tests.conversion.heads import (
    CHOICE,
    CLASSIFIER,
    LINES,
    SPAN,
    TAGGER,
    assert_outputs,
    head_config,
)
from tests.fixtures import make_huggingface_heads as make
from tests.programs import call
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.data import tokenizers
from transformer_jax.runs.open import open_run


@pytest.fixture(scope="module", params=make.HEADS)
def converted(request, tmp_path_factory):
    """An architecture, and the run of its checkpoint."""
    run = tmp_path_factory.mktemp(request.param) / "run"
    convert.from_hf(make.HERE / request.param, run)
    return request.param, run


@pytest.mark.sample("BartForQuestionAnswering", "ElectraForTokenClassification")
def test_a_checkpoint_gives_the_published_outputs(converted):
    architecture, run = converted
    expected = dict(np.load(make.HERE / architecture / "expected.npz"))
    assert_outputs(run, expected, expected["logits"])
    task, params = open_run(run)
    ((text, prediction),) = task.predict(params, [LINES[architecture]])
    if labels := make.HEADS[architecture].get("id2label"):
        assert task.config.task.labels == tuple(labels[number] for number in range(len(labels)))
        # Each word of a tagged text ends in its tag.
        predicted = [word.rpartition("/")[2] for word in text.split()]
        assert all(label in labels.values() for label in predicted)
    elif architecture.endswith("MultipleChoice"):
        assert text in ("0", "1") and len(prediction["probabilities"]) == 2
    else:
        assert text in LINES[architecture]


@pytest.mark.sample("BartForQuestionAnswering")
def test_a_converted_checkpoint_is_written_unchanged(converted, tmp_path):
    architecture, run = converted
    folder = make.HERE / architecture
    back = tmp_path / "back"
    convert.to_hf(run, back)
    is_gpt = architecture == make.GPT2
    original = weights(folder)
    written = weights(back)
    assert original.keys() == written.keys()
    for name in original:
        array = written[name]
        if is_gpt and name == "transformer.wte.weight":
            array = array[:-3]
        np.testing.assert_array_equal(original[name], array, err_msg=name)
    # GPT-2's rows get our tokens. BERT's dropout is written as a number instead of null.
    changed = {"vocab_size", "pad_token_id", "bos_token_id"} if is_gpt else {"classifier_dropout"}
    config = read_json(folder / "config.json")
    for key, value in read_json(back / "config.json").items():
        assert key in changed or config.get(key) in (value, None)
    first, again = (tokenizers.read_published(path) for path in (folder, back))
    if is_gpt:
        # With our tokens for its rows, it is written as a tokenizer.json. The others are the same.
        assert again.vocab_size == first.vocab_size + 3 and again.eos_id == first.eos_id
        texts = ["the cat sat.", "naïve 😀 text\n\tx"]
        assert again.encode(texts) == first.encode(texts)
        assert (back / "merges.txt").read_bytes() == (folder / "merges.txt").read_bytes()
        assert read_json(folder / "vocab.json").items() <= read_json(back / "vocab.json").items()
    else:
        assert first.fingerprint() == again.fingerprint()

    convert.from_hf(back, tmp_path / "again")
    first_task, first_params = open_run(run)
    second_task, second_params = open_run(tmp_path / "again")
    jax.tree.map(np.testing.assert_array_equal, first_params, second_params)
    assert configs.differences(first_task.config, second_task.config) == []


def test_the_vocabulary_of_a_gpt_grows_once(tmp_path):
    """It grows by the tokens that begin, separate and end texts. An export from here has them."""
    run = tmp_path / "run"
    hf = tmp_path / "hf"
    convert.from_hf(make.HERE / make.GPT2, run, [("model.vocab_multiple", "64")])
    task, params = open_run(run)
    embeddings = np.asarray(params["token_embed"]["embedding"])
    assert task.model.vocab_size == 270 and len(embeddings) == 320
    std = embeddings[267:270].std(axis=1)
    assert (std > 0.01).all() and (std < 0.03).all()
    assert not embeddings[270:].any()

    convert.to_hf(run, hf)
    content = read_json(hf / "config.json")
    assert content["vocab_size"] == 270 and content["pad_token_id"] == 0
    assert content["transformer_jax_marks"] is True
    library = huggingface.Tokenizer.from_file(str(hf / "tokenizer.json"))
    first, second = task.tokenizer.encode(["the cat", "sat"])
    assert library.encode("the cat").ids == [267, *first, 269]
    assert library.encode("the cat", "sat").ids == [267, *first, 268, *second, 269]
    convert.from_hf(hf, tmp_path / "again")
    assert open_run(tmp_path / "again")[0].model.vocab_size == 270


def test_regression(tmp_path):
    folder = copied(CLASSIFIER, tmp_path / "hf", id2label={"0": "LABEL_0"})
    tensors = weights(folder)
    for name in ("classifier.weight", "classifier.bias"):
        tensors[name] = tensors[name][:1].copy()
    rewrite(folder, tensors)
    convert.from_hf(folder, tmp_path / "run")
    expected = dict(np.load(folder / "expected.npz"))
    assert_outputs(tmp_path / "run", expected, expected["logits"][:, :1])
    assert open_run(tmp_path / "run")[0].regression
    convert.to_hf(tmp_path / "run", tmp_path / "back")
    content = read_json(tmp_path / "back" / "config.json")
    assert content["problem_type"] == "regression" and content["id2label"] == {"0": "LABEL_0"}


def test_labels_without_names_and_an_unused_pooler(tmp_path):
    folder = copied(TAGGER, tmp_path / "hf", id2label=..., num_labels=5)
    pooler = {
        "bert.pooler.dense.weight": np.zeros((32, 32), np.float32),
        "bert.pooler.dense.bias": np.zeros(32, np.float32),
    }
    rewrite(folder, weights(folder) | pooler)
    convert.from_hf(folder, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    assert task.names == [f"LABEL_{number}" for number in range(5)] and "pooler" not in params


@pytest.mark.full
def test_keys_that_config_json_lacks_are_overrides(tmp_path):
    overrides = [("task.pair", "2"), ("task.label", "3"), ("task.length", "20")]
    convert.from_hf(make.HERE / CLASSIFIER, tmp_path / "pairs", overrides)
    task, params = open_run(tmp_path / "pairs")
    assert task.length == 20 and len(list(task.predict(params, ["the cat\tthe rat"]))) == 1

    overrides = [("task.choices", '("2", "3", "4", "5")'), ("task.label", "6")]
    convert.from_hf(make.HERE / CHOICE, tmp_path / "four", overrides)
    task, params = open_run(tmp_path / "four")
    ((_, prediction),) = task.predict(params, ["the cat\ta\tb\tc\td"])
    assert len(prediction["probabilities"]) == 4

    with pytest.raises(UserError, match="config.task it is not a BertForPreTraining"):
        overrides = [("task.next_sentence", "0")]
        convert.from_hf(make.HERE / "BertForPreTraining", tmp_path / "new", overrides)
    with pytest.raises(UserError, match="config.task.features='last'"):
        convert.from_hf(make.HERE / TAGGER, tmp_path / "new", [("task.features", "last")])


def test_the_command_line_converts_and_predicts(tmp_path):
    done = call("convert", f"--workdir={tmp_path / 'run'}", f"--from_hf={make.HERE / CLASSIFIER}")
    assert done.returncode == 0, done.stderr
    done = call("predict", f"--workdir={tmp_path / 'run'}", "--text=the cat saw a rat", "--json")
    assert done.returncode == 0, done.stderr
    prediction = json.loads(done.stdout)
    assert prediction.keys() == {"label", "probabilities"}
    assert prediction["probabilities"].keys() == set(make.LABELS.values())


@pytest.mark.parametrize(
    "architecture, changes, message",
    [
        (
            CLASSIFIER,
            dict(id2label={"0": "a", "2": "b"}),
            "config.json: id2label: must name the labels 0, 1, 2",
        ),
        (
            CLASSIFIER,
            dict(id2label=["a", "b", "c"]),
            "config.json: id2label: must be an object that names the labels",
        ),
        (
            TAGGER,
            dict(id2label={"0": "a", "1": "b", "2": "a", "3": "c", "4": "d"}),
            "config.json: id2label: two labels have the name 'a'",
        ),
        (
            make.GPT2,
            dict(id2label=..., num_labels="3"),
            "config.json: num_labels='3': must be a whole number",
        ),
        (
            CLASSIFIER,
            dict(id2label=...),
            r"classifier.weight has shape \(3, 32\): by config.json it must be \(2, 32\)",
        ),
        (
            CLASSIFIER,
            dict(problem_type="multi_label_classification"),
            "config.json: problem_type='multi_label_classification' with 3 labels",
        ),
        (
            make.GPT2,
            dict(problem_type="regression"),
            "config.json: problem_type='regression' with 3 labels",
        ),
        (
            CLASSIFIER,
            dict(problem_type="single_label_classification", id2label={"0": "a"}),
            "problem_type='single_label_classification' with 1 labels",
        ),
        (CHOICE, dict(classifier_dropout="x"), "config.json: config.task.head_dropout='x'"),
        (TAGGER, dict(max_position_embeddings="x"), "config.json: config.model.max_length='x'"),
        (
            SPAN,
            dict(architectures=[CHOICE]),
            "missing from the weights: bert.pooler.dense.bias, bert.pooler.dense.weight, "
            "classifier.bias, classifier.weight",
        ),
        (
            make.GPT2,
            dict(architectures=["GPT2ForTokenClassification"]),
            r"architectures=\['GPT2ForTokenClassification'\]: only .*, GPT2ForSequenceClass",
        ),
        # The tokenizer may not need the three ids that fine-tuning adds.
        (
            make.GPT2,
            dict(vocab_size=265),
            "the tokenizer has 267 tokens: must be at most vocab_size=265 of config.json",
        ),
    ],
)
def test_configs_without_an_equivalent_are_refused(architecture, changes, message, tmp_path):
    refused(copied(architecture, tmp_path / "hf", **changes), tmp_path, message)


def test_missing_and_unknown_tensors_of_a_head_are_named(tmp_path):
    folder = copied(make.GPT2, tmp_path / "hf")
    tensors = weights(folder)
    tensors["score.dense"] = tensors.pop("score.weight")
    rewrite(folder, tensors)
    refused(folder, tmp_path, "missing from the weights: score.weight")
    folder = copied(SPAN, tmp_path / "span")
    rewrite(folder, weights(folder) | {"extra": np.zeros(3, np.float32)})
    refused(folder, tmp_path, "not in this architecture: extra")


@pytest.mark.parametrize(
    "options, message",
    [
        (
            dict(task="span", model="gpt"),
            "config.model.name='gpt' with config.task.name='span': "
            "only .*GPT2ForSequenceClassification.* can be written",
        ),
        (
            dict(task="classification", model="gpt", norm_position="post"),
            "config.model.name='gpt' with config.task.name='classification': only",
        ),
        (
            dict(task="tagging", model="bart"),
            "config.model.name='bart' with config.task.name='tagging': only",
        ),
        (
            dict(task="classification", pair="2", label="3", symmetric=True),
            "config.task.symmetric=True: Hugging Face's models read one row",
        ),
        (
            dict(task="tagging", features="last", lstm_width=8),
            "config.task.features='last': Hugging Face's models have no LSTM",
        ),
    ],
)
def test_runs_that_transformers_lacks_are_refused(options, message, tmp_path):
    run = random_run(head_config(**options), tmp_path / "run")
    with pytest.raises(UserError, match=f"^[^\n]*{message}[^\n]*$"):
        convert.to_hf(run, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
