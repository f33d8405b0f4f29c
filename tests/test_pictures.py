"""Pictures: the right arrays are drawn, as many panels as asked for; and the command line's, with
its mistakes.
"""

import json

import numpy as np
import pytest

from tests.conftest import build_config
from tests.finetuning import examples
from tests.programs import call, refused
from transformer_jax import pictures
from transformer_jax.config import UserError
from transformer_jax.pictures.attended import Attended
from transformer_jax.runs import record  # create
from transformer_jax.runs.resolve import make_task
from transformer_jax.training import report
from transformer_jax.training.state import init_params

WORDS = ["the", "cat", "it"]
FOUND = Attended(
    np.random.default_rng(0).dirichlet(np.ones(3), size=(2, 4, 3)).astype(np.float32), WORDS, WORDS
)


def drawn(figure):
    """The arrays that the panels show."""
    return [np.asarray(image.get_array()) for axes in figure.axes for image in axes.images]


@pytest.mark.parametrize(
    "layer, head, expected",
    [
        (None, None, FOUND.weights.reshape(8, 3, 3)),
        (2, None, FOUND.weights[1]),
        (2, 3, FOUND.weights[1, 2:3]),
    ],
)
def test_attention_draws_the_layers_and_heads_asked_for(layer, head, expected):
    found = drawn(pictures.attention(FOUND, layer, head))
    np.testing.assert_array_equal(found, expected)


def test_dollars_are_no_formula(tmp_path):
    words = ["a$", r"$\frac{", "$5"]
    pictures.save(
        pictures.attention(
            Attended(FOUND.weights, words, words), 1, title="It costs $5, not $10^."
        ),
        tmp_path / "a.png",
    )


@pytest.mark.parametrize(
    "layer, head, words",
    [
        (3, None, "layer 3: there are 1 to 2"),
        (1, 5, "head 5: there are 1 to 4"),
        (None, 1, "of which layer"),
        (0, None, "layer 0"),
    ],
)
def test_a_layer_or_head_that_there_is_not(layer, head, words):
    with pytest.raises(UserError, match=words):
        pictures.attention(FOUND, layer, head)


def test_what_a_word_attends_to_in_two_texts():
    left, right = drawn(
        pictures.attended_by(
            "It", [("one", FOUND), ("two", FOUND._replace(weights=FOUND.weights[:, ::-1]))]
        )
    )
    np.testing.assert_array_equal(left, FOUND.weights[:, :, 2].reshape(8, 3))
    np.testing.assert_array_equal(right, FOUND.weights[:, ::-1, 2].reshape(8, 3))
    assert pictures.place_of("mat", ["the", "Mat."], "") == 1
    for word, words in (("dog", "not among"), ("the", "twice or more")):
        with pytest.raises(UserError, match=words):
            pictures.attended_by(word, [("one", FOUND._replace(queries=["the", "the", "it"]))])


def test_curves_of_several_runs_against_steps_or_tokens():
    runs = {
        name: [
            {"step": 10, "train/loss": 2.0, "train/tokens_total": 10 * rows},
            {"step": 20, "train/loss": 1.0, "train/tokens_total": 20 * rows},
            {"step": 15, "valid/loss": 1.5},
        ]
        for name, rows in (("small", 4), ("large", 8))
    }
    figure = pictures.curves(runs, {"loss": ("loss",)}, against="train/tokens_total")
    lines = {line.get_label(): line.get_xdata().tolist() for line in figure.axes[0].lines}
    assert lines == {
        "small train/loss": [40, 80],
        "small valid/loss": [60],
        "large train/loss": [80, 160],
        "large valid/loss": [120],
    }
    # loss, and nothing of the other panels
    assert [len(axes.lines) for axes in pictures.curves({"": runs["small"]}).axes] == [2, 0, 0, 0]


def test_curves_show_every_score_and_the_name_of_the_run(tmp_path):
    scores = {"valid/loss": 2.0, "valid/bleu": 30.0, "valid/chrf": 50.0, "valid/own": 1.0}
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    with report.Reporter(run, 0, 20) as reporter:
        reporter.write(10, {"train/loss": 2.5, "train/mfu": 0.1, "seconds/step": 3.0})
        reporter.evaluation(20, scores)
        assert reporter.name == "runs/mine"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    figure = pictures.curves({"": lines}, title=reporter.name)
    panels = {axes.get_title(): [line.get_label() for line in axes.lines] for axes in figure.axes}
    assert panels["BLEU and chrF"] == ["valid/bleu", "valid/chrf"]
    assert panels["own"] == ["valid/own"]
    shown = {name for names in panels.values() for name in names}
    assert shown == {*scores, "train/loss"} and figure.get_suptitle() == "runs/mine"


def test_perplexity_is_logarithmic_where_it_falls_far():
    for last, scale in ((2.0, "linear"), (0.4, "log")):
        lines = [
            {"step": 1, "valid/perplexity": 4.0},
            {"step": 2, "valid/perplexity": last},
            {"step": 3, "valid/perplexity": None},
        ]
        figure = pictures.curves({"": lines})
        assert {axes.get_title(): axes.get_yscale() for axes in figure.axes}["perplexity"] == scale


def test_confusion_writes_the_counts_into_their_cells():
    counts = [[30, 10], [0, 0]]
    figure = pictures.confusion(["yes", "no"], counts, "a title")
    np.testing.assert_allclose(drawn(figure)[0], [[0.75, 0.25], [0, 0]])
    assert [text.get_text() for text in figure.axes[0].texts] == ["30", "10", "0", "0"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["yes", "no"]
    many = [str(number) for number in range(30)]
    assert not pictures.confusion(many, np.eye(30, dtype=int)).axes[0].texts


def test_growth_has_a_panel_for_each_axis_with_both_costs():
    figure = pictures.growth(
        {"length": [(64, 1.0, 0.9), (128, 2.0, 1.8)], "depth": [(2, 3.0, 3.0), (4, 6.0, 6.0)]}
    )
    assert [axes.get_xlabel() for axes in figure.axes] == ["length", "depth"]
    lines = {line.get_label(): line.get_xydata().tolist() for line in figure.axes[0].lines}
    assert lines == {"measured": [[64, 1.0], [128, 2.0]], "predicted": [[64, 0.9], [128, 1.8]]}


def test_similarity_is_the_cosine():
    vectors = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])
    np.testing.assert_allclose(
        drawn(pictures.similarity(vectors, ""))[0],
        [[1, 0, 0.5**0.5], [0, 1, 0.5**0.5], [0.5**0.5, 0.5**0.5, 1]],
        atol=1e-12,
    )
    np.testing.assert_allclose(drawn(pictures.positions(vectors, ""))[1], vectors @ vectors.T)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="can't be written"):
        pictures.save(pictures.mean_attention(FOUND), tmp_path / "none" / "a.png")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Workdirs of an untrained translation, GPT and BERT."""
    folder = tmp_path_factory.mktemp("pictures")
    found = {family: examples.pretrained(folder, family) for family in ("gpt", "bert")}
    found["wmt"] = folder / "wmt"
    found["wmt"].mkdir()
    task = make_task(build_config(folder / "pairs"))
    record.create(found["wmt"], task, init_params(task))
    for number, family in enumerate(("gpt", "bert")):
        (found[family] / "metrics.jsonl").write_text(
            json.dumps({"step": 1, "train/loss": number, "train/tokens_total": 8}) + "\n"
        )
    return found


@pytest.mark.parametrize(
    "picture, family, arguments",
    [
        ("masks", None, []),
        ("positions", None, []),
        ("positions", "wmt", []),
        ("positions", "bert", []),
        ("attention", "gpt", ["--text=the cat sat", "--layer=2", "--head=1", "--pieces"]),
        ("attention", "wmt", ["--text=a dog runs", "--target=ein hund", "--kind=decoder"]),
        (
            "coreference",
            "bert",
            ["--text=the cat sat", "--text=a dog sat to the cat", "--word=cat"],
        ),
    ],
)
def test_the_command_draws(picture, family, arguments, runs, tmp_path):
    path = tmp_path / "found.png"
    done = call(
        "inspect",
        picture,
        f"--output={path}",
        *([f"--workdir={runs[family]}"] if family else []),
        *arguments,
    )
    assert done.returncode == 0 and done.stdout == f"{path}\n", done.stderr
    assert (
        path.read_bytes()[:4] == b"\x89PNG"
        and path.stat().st_size > 3000
        and [*tmp_path.iterdir()] == [path]
    )


def test_the_command_draws_curves_of_several_runs(runs, tmp_path):
    folders = [f"--workdir={runs[family]}" for family in ("gpt", "bert")]
    done = call(
        "inspect",
        "curves",
        *folders,
        "--metrics=train/loss",
        "--against=train/tokens_total",
        f"--output={tmp_path}/c.png",
    )
    assert done.returncode == 0 and (tmp_path / "c.png").stat().st_size > 3000, done.stderr


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], ["attention, coreference, positions, masks, confusion, curves"]),
        (["attention", "--text=a cat"], ["--workdir=... is missing"]),
        (["attention", "--workdir=@gpt"], ["--text=... is missing"]),
        (
            ["attention", "--workdir=@gpt", "--text=a cat", "--layer=9"],
            ["layer 9: there are 1 to 2"],
        ),
        (
            ["attention", "--workdir=@gpt", "--text=a cat", "--kind=cross"],
            ["--kind=cross", "there is: decoder"],
        ),
        (
            ["attention", "--workdir=@bert", "--text=a cat", "--target=b"],
            ["--target", "translation"],
        ),
        (["coreference", "--workdir=@bert", "--text=a cat sat"], ["'it' is not among the words"]),
        (["masks", "--layer=1"], ["--layer: not for masks"]),
        (["masks", "--config.model.foo=3"], ["--config.model.foo", "no config here"]),
        (["masks", "--output=/proc"], ["--output=/proc", "no file can be written"]),
        (["attention", "--workdir=@gpt", "--text=\udcff"], ["not UTF-8"]),
        (["masks", "--output=/no/such/a.png"], ["--output=/no/such/a.png", "no such folder"]),
        (["curves", "--workdir=@wmt"], ["no metrics.jsonl"]),
        (
            ["curves", "--workdir=@gpt", "--metrics=valid/bleu"],
            ["--metrics=valid/bleu", "train/loss"],
        ),
        (["confusion", "--workdir=@gpt"], ["a causal_lm run without labels"]),
        (["positions", "--workdir=/no/where"], ["no run here"]),
    ],
)
def test_the_command_says_what_is_wrong(arguments, words, runs, tmp_path):
    given = [
        argument.replace(f"@{family}", str(runs[family]))
        for argument in arguments
        for family in [argument.partition("@")[2] or "gpt"]
    ]
    refused(
        call(
            "inspect",
            *given,
            *(
                []
                if any("output" in each for each in given) or not given
                else [f"--output={tmp_path}/a.png"]
            ),
        ),
        *words,
    )
    assert not (tmp_path / "a.png").exists()
