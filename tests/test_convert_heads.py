"""Fine-tuned heads between Hugging Face's folders and workdirs: outputs equal, parameters there and
back, and predictions from what is converted.
"""

import json
import shutil

import jax
import numpy as np
import pytest
import tokenizers as huggingface
from safetensors.numpy import load_file, save_file

from tests.fixtures import make_huggingface_heads as make
from tests.programs import call
from tests.test_convert import made
from transformer_jax import config as configs
from transformer_jax import convert
from transformer_jax.config import UserError
from transformer_jax.data import tokenizers
from transformer_jax.runs.open import open_run

HEADS = pytest.mark.parametrize("architecture", make.HEADS)
CLOSE = dict(rtol=0, atol=1e-4)
CLASSIFIER, TAGGER, SPAN, CHOICE = (
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
    "BertForMultipleChoice",
)
ASKED = {
    CLASSIFIER: "the cat saw a rat",
    TAGGER: "the cat saw a rat",
    SPAN: "who saw the rat\tThe cat sat on the mat, and the cat saw the rat.",
    CHOICE: "the cat saw\ta rat\ta book",
    make.GPT2: "the cat saw a rat",
}


def outputs(task, params, given):
    """What the run's head makes of arrays as Hugging Face's models take them."""
    batch = {"tokens": given["ids"], "token_types": given["types"], "segment_ids": given["filled"]}
    return np.asarray(task.outputs(params, batch, None, False)[0])


def same(run, given, expected):
    """The run computes what is expected; of padding nothing is."""
    found = outputs(*open_run(run), given)
    if found.ndim == 3:
        found, expected = found[given["filled"] > 0], expected[given["filled"] > 0]
    np.testing.assert_allclose(found.reshape(expected.shape), expected, **CLOSE)


def copied(architecture, folder, **changes):
    """A copy of a committed checkpoint with other keys in its config.json; None takes one out."""
    shutil.copytree(make.HERE / architecture, folder)
    content = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(
        json.dumps({key: value for key, value in content.items() if value is not None})
    )
    return folder


def changed_tensors(folder, **tensors):
    found = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(
        {
            name: array
            for name, array in {
                **found,
                **{key.replace("__", "."): array for key, array in tensors.items()},
            }.items()
            if array is not None
        },
        folder / "model.safetensors",
    )


@HEADS
def test_a_checkpoint_computes_what_it_is_published_with(architecture, tmp_path):
    expected = dict(np.load(make.HERE / architecture / "expected.npz"))
    convert.from_hf(make.HERE / architecture, tmp_path / "run")
    same(tmp_path / "run", expected, expected["logits"])
    task, params = open_run(tmp_path / "run")
    ((plain, found),) = task.predict(params, [ASKED[architecture]])
    if labels := make.HEADS[architecture].get("id2label"):
        assert task.config.task.labels == tuple(labels[number] for number in range(len(labels)))
        named = [word.rpartition("/")[2] for word in plain.split()]  # tags stand behind their words
        assert all(label in labels.values() for label in named)
    elif architecture == CHOICE:
        assert plain in ("0", "1") and len(found["probabilities"]) == 2
    else:
        assert plain in ASKED[SPAN]


@HEADS
def test_a_checkpoint_goes_there_and_back(architecture, tmp_path):
    folder, run, back = make.HERE / architecture, tmp_path / "run", tmp_path / "back"
    convert.from_hf(folder, run)
    convert.to_hf(run, back)
    was, now = (load_file(f / "model.safetensors") for f in (folder, back))
    assert was.keys() == now.keys()
    grown = {"transformer.wte.weight"} if architecture == make.GPT2 else set()
    for name in was:
        np.testing.assert_array_equal(
            was[name], now[name][:-3] if name in grown else now[name], err_msg=name
        )
    was, now = (json.loads((f / "config.json").read_text()) for f in (folder, back))
    # GPT-2's rows are ours, BERT's dropout is given by its number
    ours = {"vocab_size", "pad_token_id", "bos_token_id"} if grown else {"classifier_dropout"}
    assert not [
        key for key, value in now.items() if key not in ours and was.get(key) not in (value, None)
    ]
    assert (
        tokenizers.read_published(back).fingerprint()
        == tokenizers.read_published(folder).fingerprint()
    )

    convert.from_hf(back, tmp_path / "again")
    (task, first), (same_task, second) = open_run(run), open_run(tmp_path / "again")
    jax.tree.map(np.testing.assert_array_equal, first, second)
    assert configs.differences(task.config, same_task.config) == []


def test_the_vocabulary_of_a_gpt_grows_once(tmp_path):
    """By what begins, parts and ends a row, unless the checkpoint was exported from here and has
    it.
    """
    run = tmp_path / "run"
    convert.from_hf(make.HERE / make.GPT2, run, [("model.vocab_multiple", "64")])
    task, params = open_run(run)
    vectors = np.asarray(params["token_embed"]["embedding"])
    assert task.model.vocab_size == 270 and len(vectors) == 320
    assert (
        (vectors[267:270].std(axis=1) > 0.01).all()
        and (vectors[267:270].std(axis=1) < 0.03).all()
        and not vectors[270:].any()
    )
    convert.to_hf(run, tmp_path / "hf")
    content = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (
        content["vocab_size"] == 270
        and content["transformer_jax_marks"] is True
        and content["pad_token_id"] == 0
    )
    library = huggingface.Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    first, second = task.tokenizer.encode(["the cat", "sat"])
    assert library.encode("the cat").ids == [267, *first, 269] and library.encode(
        "the cat", "sat"
    ).ids == [267, *first, 268, *second, 269]
    convert.from_hf(tmp_path / "hf", tmp_path / "again")
    assert open_run(tmp_path / "again")[0].model.vocab_size == 270


def test_a_number_instead_of_labels(tmp_path):
    folder = copied(CLASSIFIER, tmp_path / "hf", id2label={"0": "LABEL_0"})
    tensors = load_file(folder / "model.safetensors")
    changed_tensors(
        folder,
        **{name: tensors[name][:1].copy() for name in ("classifier.weight", "classifier.bias")},
    )
    convert.from_hf(folder, tmp_path / "run")
    expected = dict(np.load(folder / "expected.npz"))
    same(tmp_path / "run", expected, expected["logits"][:, :1])
    assert open_run(tmp_path / "run")[0].regression
    convert.to_hf(tmp_path / "run", tmp_path / "back")
    content = json.loads((tmp_path / "back" / "config.json").read_text())
    assert content["problem_type"] == "regression" and content["id2label"] == {"0": "LABEL_0"}


def test_labels_without_names_and_a_pooler_that_no_head_reads(tmp_path):
    folder = copied(TAGGER, tmp_path / "hf", id2label=None, num_labels=5)
    changed_tensors(
        folder,
        bert__pooler__dense__weight=np.zeros((32, 32), np.float32),
        bert__pooler__dense__bias=np.zeros(32, np.float32),
    )
    convert.from_hf(folder, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    assert task.names == [f"LABEL_{number}" for number in range(5)] and "pooler" not in params


def test_what_config_json_does_not_say_is_set(tmp_path):
    convert.from_hf(
        make.HERE / CLASSIFIER,
        tmp_path / "pairs",
        [("task.pair", "2"), ("task.label", "3"), ("task.length", "20")],
    )
    task, params = open_run(tmp_path / "pairs")
    assert task.length == 20 and len(list(task.predict(params, ["the cat\tthe rat"]))) == 1
    convert.from_hf(
        make.HERE / CHOICE,
        tmp_path / "four",
        [("task.choices", '("2", "3", "4", "5")'), ("task.label", "6")],
    )
    ((_, found),) = open_run(tmp_path / "four")[0].predict(
        open_run(tmp_path / "four")[1], ["the cat\ta\tb\tc\td"]
    )
    assert len(found["probabilities"]) == 4
    with pytest.raises(
        UserError, match="with these overrides of config.task it is no BertForPreTraining"
    ):
        convert.from_hf(
            make.HERE / "BertForPreTraining", tmp_path / "new", [("task.next_sentence", "0")]
        )
    with pytest.raises(UserError, match="config.task.features='last'"):
        convert.from_hf(make.HERE / TAGGER, tmp_path / "new", [("task.features", "last")])


def test_the_command_line_converts_and_predicts(tmp_path):
    done = call("convert", f"--workdir={tmp_path / 'run'}", f"--from_hf={make.HERE / CLASSIFIER}")
    assert done.returncode == 0, done.stderr
    found = call("predict", f"--workdir={tmp_path / 'run'}", "--text=the cat saw a rat", "--json")
    assert found.returncode == 0 and json.loads(found.stdout).keys() == {
        "label",
        "probabilities",
    }, found.stderr
    assert json.loads(found.stdout)["probabilities"].keys() == set(make.LABELS.values())


@pytest.mark.parametrize(
    "architecture, changes, message",
    [
        (
            CLASSIFIER,
            dict(id2label={"0": "a", "2": "b"}),
            "config.json: id2label: it must name the labels 0, 1, 2",
        ),
        (
            CLASSIFIER,
            dict(id2label=["a", "b", "c"]),
            "config.json: id2label: it must name the labels",
        ),
        (
            TAGGER,
            dict(id2label={"0": "a", "1": "b", "2": "a", "3": "c", "4": "d"}),
            "config.json: id2label: two labels are called 'a'",
        ),
        (
            make.GPT2,
            dict(id2label=None, num_labels="3"),
            "config.json: num_labels='3': a whole number",
        ),
        (
            CLASSIFIER,
            dict(id2label=None),
            r"classifier.weight has shape \(3, 32\), config.json makes it \(2, 32\)",
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
            "missing from the weights: bert.pooler.dense.bias, bert.pooler.dense.weight, classifier.bias, classifier.weight",
        ),
        (
            make.GPT2,
            dict(architectures=["GPT2ForTokenClassification"]),
            r"architectures=\['GPT2ForTokenClassification'\]: only .*, GPT2ForSequenceClass",
        ),
        # not those three of our own
        (
            make.GPT2,
            dict(vocab_size=265),
            "the tokenizer has 267 tokens: more than vocab_size=265 of config.json",
        ),
    ],
)
def test_what_can_not_be_read_is_named(architecture, changes, message, tmp_path):
    folder = copied(architecture, tmp_path / "hf", **changes)
    with pytest.raises(UserError, match=f"^[^\n]*{message}[^\n]*$"):
        convert.from_hf(folder, tmp_path / "new" / "run")
    assert not list(tmp_path.glob("new/*"))


def test_missing_and_unknown_tensors_of_a_head_are_named(tmp_path):
    folder = copied(make.GPT2, tmp_path / "hf")
    changed_tensors(folder, score__weight=None, score__dense=np.zeros((3, 32), np.float32))
    with pytest.raises(UserError, match="missing from the weights: score.weight"):
        convert.from_hf(folder, tmp_path / "run")
    folder = copied(SPAN, tmp_path / "span")
    changed_tensors(folder, extra=np.zeros(3, np.float32))
    with pytest.raises(UserError, match="not in this architecture: extra"):
        convert.from_hf(folder, tmp_path / "run")


def ours(task, model="bert", **options):
    """The config of a fine-tuned run with a committed tokenizer."""
    labels = (
        {"labels": ("no", "yes", "maybe")}
        if task in ("classification", "tagging") and not options.get("regression")
        else {}
    )
    of_model = (
        {"vocab_size": 267 + 3, "vocab_multiple": 64}
        if model == "gpt"
        else {"vocab_size": 43, "norm_epsilon": 1e-3}
    )
    norm = {"norm_position": options.pop("norm_position")} if "norm_position" in options else {}
    narrow = {"stride": 8, "max_question": 8} if task == "span" else {}
    return configs.experiment(
        model=dict(
            name=model, d_model=24, num_layers=3, num_heads=3, max_length=40, **of_model, **norm
        ),
        task=dict(name=task, length=40, **labels, **narrow, **options),
        data=dict(tokenizer_files=str(make.HERE / (CLASSIFIER if model == "bert" else make.GPT2))),
    )


@pytest.mark.parametrize(
    "config, message",
    [
        (
            dict(task="span", model="gpt"),
            "config.model.name='gpt' with config.task.name='span': only .*GPT2ForSequenceClassification, .* can be written",
        ),
        (
            dict(task="classification", model="gpt", norm_position="post"),
            "config.model.name='gpt' with config.task.name='classification': only",
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
def test_runs_that_transformers_can_not_compute_are_refused(config, message, tmp_path):
    with pytest.raises(UserError, match=f"^[^\n]*{message}[^\n]*$"):
        convert.to_hf(made(ours(**config), tmp_path / "run"), tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


# where transformers and torch are installed: fresh models, both ways


@HEADS
@pytest.mark.parametrize("wide", [False, True])
def test_live_from_transformers(architecture, wide, tmp_path):
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    vocab_size = make.save_tokenizer(architecture, tmp_path / "hf")
    sizes = dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=3, layer_norm_eps=1e-12)
    sizes = dict(n_embd=24, n_layer=3, n_head=3) if architecture == make.GPT2 else sizes
    numbered = dict(num_labels=4) if "id2label" in make.HEADS[architecture] else {}  # without names
    theirs = make.model(
        architecture,
        vocab_size,
        seed=5,
        **({**sizes, **numbered, "id2label": None} if wide and numbered else sizes if wide else {}),
    )
    theirs.save_pretrained(tmp_path / "hf")
    convert.from_hf(tmp_path / "hf", tmp_path / "run")
    given = make.inputs(architecture, vocab_size, 20)
    same(tmp_path / "run", given, make.computed(theirs, **given))


@pytest.mark.parametrize(
    "architecture, config, asked",
    [
        (
            CLASSIFIER,
            dict(task="classification", pair="2"),
            ["the cat sat\ton the mat", "the man reads\ta book and a rat"],
        ),
        (CLASSIFIER, dict(task="classification", regression=True), ["the cat sat", "a book"]),
        (TAGGER, dict(task="tagging", head_dropout=0.3), ["the cat sat on the mat", "a rat"]),
        (SPAN, dict(task="span"), [ASKED[SPAN], "a book\tthe man reads"]),
        (
            CHOICE,
            dict(task="choice"),
            ["the cat\tsat\tsaw a rat\treads\tthe mat", "the man\treads a book\tsaw\tsat\ton"],
        ),
        (
            make.GPT2,
            dict(task="classification", model="gpt", pair="2", label="3"),
            ["the cat sat\ton the mat", "the man reads\ta book and a rat"],
        ),
        (
            make.GPT2,
            dict(task="classification", model="gpt", regression=True),
            ["the cat sat", "a book"],
        ),
    ],
)
def test_live_to_transformers(architecture, config, asked, tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    run = made(ours(**config), tmp_path / "run")
    convert.to_hf(run, tmp_path / "hf")
    theirs, loading = getattr(transformers, architecture).from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not any(loading.values())
    task, _ = open_run(run)
    lines = task.unlabelled(list(enumerate(asked, 1)))
    examples = [example for line in lines for example in line.examples]
    rows = [task.row(example) for example in examples]
    named = {"ids": "tokens", "types": "token_types", "filled": "segment_ids"}
    given = {
        key: np.stack([row[name] for row in rows]).astype(np.int64) for key, name in named.items()
    }
    same(run, given, make.computed(theirs.eval(), **given))
    if "labels" in task.config.task and task.config.task.labels:
        assert theirs.config.id2label == dict(enumerate(task.names)) and theirs.config.label2id == {
            name: number for number, name in enumerate(task.names)
        }
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert (
        tokenizer("the cat saw", add_special_tokens=False).input_ids
        == task.tokenizer.encode(["the cat saw"])[0]
    )
    if config.get("model") == "gpt":
        assert [tokenizer(*line.split("\t")).input_ids for line in asked] == [
            row["tokens"][row["segment_ids"] > 0].tolist() for row in rows
        ]
    convert.from_hf(
        tmp_path / "hf",
        tmp_path / "again",
        [("task.pair", "2"), ("task.label", "3")] if config.get("pair") else [],
    )
    first, second = (
        jax.tree.map(np.asarray, open_run(folder)[1]) for folder in (run, tmp_path / "again")
    )
    first["token_embed"]["embedding"] = first["token_embed"]["embedding"][: task.model.vocab_size]
    jax.tree.map(np.testing.assert_array_equal, first, second)
