"""Figures draw the right arrays in the right panels. The program `draw` draws and refuses."""

import json
import pathlib
import re

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image, ImageSequence

from tests.conftest import build_config
from tests.finetuning import examples
from tests.programs import call, refused
from transformer_jax import pictures
from transformer_jax.cli import model_pictures
from transformer_jax.config import UserError
from transformer_jax.pictures import figure, learning_curves
from transformer_jax.pictures.attention_maps import Attended
from transformer_jax.pictures.figure import drawing_version, style
from transformer_jax.runs import spec
from transformer_jax.runs.spec import make_task
from transformer_jax.training import trainer
from transformer_jax.training.step import init_params

WORDS = ["the", "cat", "it"]
ATTENDED = Attended(
    np.random.default_rng(0).dirichlet(np.ones(3), size=(2, 4, 3)).astype(np.float32), WORDS, WORDS
)


def drawn(figure):
    """Returns the arrays in the panels of a figure."""
    return [np.asarray(image.get_array()) for axes in figure.axes for image in axes.images]


@pytest.mark.parametrize(
    "layer, head, expected",
    [
        (None, None, ATTENDED.weights.reshape(8, 3, 3)),
        (2, None, ATTENDED.weights[1]),
        (2, 3, ATTENDED.weights[1, 2:3]),
    ],
)
def test_attention_draws_the_given_layer_and_head(layer, head, expected):
    np.testing.assert_array_equal(drawn(pictures.attention(ATTENDED, layer, head)), expected)


def test_dollar_signs_do_not_start_a_formula(tmp_path):
    words = ["a$", r"$\frac{", "$5"]
    pictures.save(
        pictures.attention(
            Attended(ATTENDED.weights, words, words), 1, title="It costs $5, not $10^."
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
def test_unknown_layers_and_heads_are_refused(layer, head, words):
    with pytest.raises(UserError, match=words):
        pictures.attention(ATTENDED, layer, head)


def test_attention_of_a_word_in_two_texts():
    left, right = drawn(
        pictures.attended_by(
            "It", [("one", ATTENDED), ("two", ATTENDED._replace(weights=ATTENDED.weights[:, ::-1]))]
        )
    )
    np.testing.assert_array_equal(left, ATTENDED.weights[:, :, 2].reshape(8, 3))
    np.testing.assert_array_equal(right, ATTENDED.weights[:, ::-1, 2].reshape(8, 3))
    assert pictures.word_index("mat", ["the", "Mat."], "") == 1
    with pytest.warns(DeprecationWarning, match="pictures.place_of is now word_index"):
        assert pictures.place_of is pictures.word_index
    for word, words in (("dog", "not among"), ("the", "twice or more")):
        with pytest.raises(UserError, match=words):
            pictures.attended_by(word, [("one", ATTENDED._replace(queries=["the", "the", "it"]))])


def test_a_translation_has_a_frame_for_each_layer_and_token(tmp_path):
    """A frame shows what has been written so far, and the GIF file has all frames."""
    source, target = ["a", "dog", "$"], ["ein", "Hund"]
    random = np.random.default_rng(0)

    def weights(queries, keys):
        shape = (2, 4, len(queries))
        found = random.dirichlet(np.ones(len(keys)), size=shape).astype(np.float32)
        return Attended(found, queries, keys)

    figures = pictures.translation_steps(
        weights(source, source), weights(target, ["<s>", "ein"]), weights(target, source), "title"
    )
    texts = [{text.get_text() for text in figure.axes[0].texts} for figure in figures]
    source = {"a", "dog", r"\$"}
    assert texts == [source] * 3 + [source | {"<s>", "ein"}, source | {"<s>", "ein", "Hund"}]
    assert [figure.axes[0].get_title("left") for figure in figures] == [
        "the tokens of the source",
        "encoder, layer 1 of 2: all tokens at once",
        "encoder, layer 2 of 2: all tokens at once",
        "decoder, step 1 of 2: it writes ein",
        "decoder, step 2 of 2: it writes Hund",
    ]
    lines = [len(figure.axes[0].patches) for figure in figures]
    assert lines[0] == 0 and sorted(lines) == lines
    pictures.save_animation(figures, tmp_path / "steps.gif")
    with Image.open(tmp_path / "steps.gif") as animation:
        assert (animation.format, animation.n_frames) == ("GIF", 5)
        durations = [frame.info["duration"] for frame in ImageSequence.Iterator(animation)]
    assert durations[:-1] == [900] * 4 and durations[-1] == 2700


def test_sizes_are_labeled_with_three_digits():
    figure = pictures.model_sizes(
        [("small", 2018.5, 117_000_000), ("large", 2020, 174_604_000_000)]
    )
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["small, 117 M", "large, 175 B"]
    assert axes.get_yscale() == "log"


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
    # the panel of losses has lines, the others are empty
    assert [len(axes.lines) for axes in pictures.curves({"": runs["small"]}).axes] == [2, 0, 0, 0]


def test_curves_show_every_score_and_the_name_of_the_run(tmp_path):
    scores = {"valid/loss": 2.0, "valid/bleu": 30.0, "valid/chrf": 50.0, "valid/own": 1.0}
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    with trainer.Reporter(run, 0, 20) as reporter:
        reporter.write(10, {"train/loss": 2.5, "train/mfu": 0.1, "seconds/step": 3.0})
        reporter.evaluation(20, scores)
        assert reporter.name == "runs/mine"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    figure = pictures.curves({"": lines}, title=reporter.name)
    panels = {axes.get_title(): [line.get_label() for line in axes.lines] for axes in figure.axes}
    assert panels["BLEU and chrF"] == ["valid/bleu", "valid/chrf"]
    assert panels["own"] == ["valid/own"]
    drawn_names = {name for names in panels.values() for name in names}
    assert drawn_names == {*scores, "train/loss"} and figure.get_suptitle() == "runs/mine"


def test_perplexity_is_logarithmic_over_a_decade():
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


def test_a_small_table_of_positions_has_its_numbers(tmp_path):
    """The bits of 0 to 15, and the sinusoids of width 4, without a run."""
    bits = model_pictures.codes("binary", 16, None)
    numbers = [text.get_text() for text in bits.axes[0].texts]
    assert numbers == [str(n >> bit & 1) for n in range(16) for bit in range(4)]
    sines = model_pictures.codes(None, 20, 4)
    assert len(sines.axes[0].texts) == 80
    assert [text.get_text() for text in sines.axes[0].texts[4:8]] == [
        f"{value:.2f}" for value in (np.sin(1), np.cos(1), np.sin(0.01), np.cos(0.01))
    ]
    wide = model_pictures.codes(None, 20, 101)
    assert drawn(wide)[0].shape == (20, 101) and not wide.axes[0].texts


def test_a_map_is_of_the_principal_components_and_its_labels_keep_clear():
    random = np.random.default_rng(0)
    vectors = random.normal(size=(40, 8)) * [9, 4, 1, 1, 1, 1, 1, 1]
    labels = [f"word {n}" * (1 + n % 4) for n in range(40)]
    figure = pictures.word_map(vectors, labels, ["a", "b"] * 20, "a map")
    (axes,) = figure.axes
    points = np.concatenate([dots.get_offsets() for dots in axes.collections])
    assert points.shape == (40, 2) and len(axes.collections) == 2
    variances = np.linalg.eigvalsh(np.cov(vectors.T, bias=True))[::-1]
    np.testing.assert_allclose(points.var(axis=0), variances[:2])
    assert f"{variances[0] / variances.sum():.0%} of the variance" in axes.get_xlabel()
    # On paper, as the renderer measures the letters.
    figure.draw_without_rendering()
    # Of the text alone, without the line to its point.
    boxes = [Text.get_window_extent(text) for text in axes.texts]
    assert [text.get_text() for text in axes.texts] == labels
    overlapping = sum(
        one.overlaps(other) for n, one in enumerate(boxes) for other in boxes[n + 1 :]
    )
    assert overlapping == 0
    frame = axes.get_window_extent()
    assert all(frame.containsx(box.x0) and frame.containsx(box.x1) for box in boxes)
    assert all(frame.containsy(box.y0) and frame.containsy(box.y1) for box in boxes)


def test_one_vector_and_equal_vectors_have_a_map(tmp_path):
    for vectors in (np.ones((1, 3)), np.ones((3, 1))):
        labels = ["$a"] * len(vectors)
        pictures.save(pictures.word_map(vectors, labels), tmp_path / "map.png")


def test_masking_of_a_sentence_has_the_shares_of_the_paper(capsys):
    """80 % of the selected words are masked, 10 % are replaced, and 10 % are unchanged."""
    text = "the quick brown fox jumps over the lazy dog and drinks a cup of hot coffee"
    figure = model_pictures.masking(text, 600)
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == 600 and all(line.startswith("[CLS] ") for line in lines)
    selected, total, masked, replaced, unchanged = map(int, re.findall(r"\d+", last))
    assert total == 600 * 18 and selected == 600 * round(0.15 * 18)
    assert masked == sum(line.count("[MASK]") for line in lines)
    assert masked / selected == pytest.approx(0.8, abs=0.04)
    # A replacement may be the word itself, which then counts as unchanged.
    assert replaced / selected == pytest.approx(0.1, abs=0.03)
    assert unchanged / selected == pytest.approx(0.1, abs=0.03)
    colors = {text.get_text(): text.get_bbox_patch() for text in figure.axes[0].texts}
    assert colors["[MASK]"].get_facecolor() == colors["masked"].get_facecolor()


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="can't be written"):
        pictures.save(pictures.mean_attention(ATTENDED), tmp_path / "none" / "a.png")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Workdirs of an untrained translation model, GPT and BERT by family."""
    folder = tmp_path_factory.mktemp("pictures")
    workdirs = {family: examples.pretrained(folder, family) for family in ("gpt", "bert")}
    workdirs["wmt"] = folder / "wmt"
    workdirs["wmt"].mkdir()
    task = make_task(build_config(folder / "pairs"))
    spec.create(workdirs["wmt"], task, init_params(task))
    for number, family in enumerate(("gpt", "bert")):
        (workdirs[family] / "metrics.jsonl").write_text(
            json.dumps({"step": 1, "train/loss": number, "train/tokens_total": 8}) + "\n"
        )
    return workdirs


@pytest.mark.sample(
    "masks-None-arguments0",
    "neighbours-bert-arguments1",
    "positions-None-arguments2",
    "positions-wmt-arguments3",
    "positions-bert-arguments4",
    "attention-wmt-arguments6",
    "animation-wmt-arguments7",
    "coreference-bert-arguments8",
    "vectors-bert-arguments10",
    "vectors-bert-arguments12",
    "masking-bert-arguments13",
)
@pytest.mark.parametrize(
    "picture, family, arguments",
    [
        ("masks", None, []),
        ("neighbours", "bert", ["--word=cat", "--texts=@texts", "--layer=1"]),
        ("positions", None, []),
        ("positions", "wmt", []),
        ("positions", "bert", []),
        ("attention", "gpt", ["--text=the cat sat", "--layer=2", "--head=1", "--pieces"]),
        ("attention", "wmt", ["--text=a dog runs", "--target=ein hund", "--kind=decoder"]),
        ("animation", "wmt", ["--text=a dog runs", "--target=ein hund"]),
        (
            "coreference",
            "bert",
            ["--text=the cat sat", "--text=a dog sat to the cat", "--word=cat"],
        ),
        ("positions", None, ["--kind=binary", "--count=16"]),
        ("vectors", "bert", ["--words=cat,dog,the"]),
        ("vectors", "gpt", []),
        ("vectors", "bert", ["--word=cat", "--texts=@texts", "--layer=1"]),
        ("masking", "bert", ["--text=the cat sat on the mat", "--draws=3"]),
    ],
)
def test_the_command_draws(picture, family, arguments, runs, tmp_path):
    path = tmp_path / ("drawn.gif" if picture == "animation" else "drawn.png")
    texts = runs["bert"] / "texts.tsv"
    texts.write_text("cat\ta\tthe cat sat\ncat\tb\ta dog, a cat\ncat\ta\ton the cat sat the cat\n")
    arguments = [argument.replace("@texts", str(texts)) for argument in arguments]
    done = call(
        "draw",
        picture,
        f"--output={path}",
        *([f"--workdir={runs[family]}"] if family else []),
        *arguments,
    )
    assert done.returncode == 0 and done.stdout.endswith(f"{path}\n"), done.stderr
    assert len(done.stdout.splitlines()) == (5 if picture == "masking" else 1)
    expected = b"GIF8" if picture == "animation" else b"\x89PNG"
    assert path.read_bytes()[:4] == expected and path.stat().st_size > 3000
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    "ending, start", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_a_picture_has_the_format_of_its_name(ending, start, tmp_path):
    path = tmp_path / f"masks.{ending}"
    done = call("draw", "masks", f"--output={path}", "--size=3.4,2.5", "--dpi=200")
    assert done.returncode == 0, done.stderr
    content = path.read_bytes()
    # The version of the function that drew it, which tells whether it is out of date.
    name = "pictures.attention_maps.masks"
    version = f"transformer_jax {name} {drawing_version(name)}"
    assert content.startswith(start) and version.encode() in content
    if ending == "png":
        with Image.open(path) as picture:
            assert picture.size == (680, 500)


def test_runs_differ_in_color_and_their_metrics_in_lines():
    lines = [{"step": step, "train/loss": 1.0, "valid/loss": 2.0} for step in (1, 2)]
    figure = pictures.curves({"a": lines, "b": lines}, {"loss": ("loss",)})
    drawn = {line.get_label(): line for line in figure.axes[0].lines}
    assert set(drawn) == {"a train/loss", "a valid/loss", "b train/loss", "b valid/loss"}
    colors = {name: line.get_color() for name, line in drawn.items()}
    assert colors["a train/loss"] == colors["a valid/loss"] != colors["b valid/loss"]
    looks = {name: line.get_linestyle() for name, line in drawn.items()}
    assert looks["a train/loss"] == looks["b train/loss"] != looks["a valid/loss"]
    assert len({(style(n)["color"], style(n)["linestyle"]) for n in range(28)}) == 28


def test_the_command_draws_curves_of_several_runs(runs, tmp_path):
    folders = [f"--workdir={runs[family]}" for family in ("gpt", "bert")]
    done = call(
        "draw",
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
        (["masks", "--output=a.jpg"], ["a.jpg: a picture must end in .png, .svg, .pdf"]),
        (["animation", "--workdir=@wmt", "--output=a.png"], ["an animation must end in .gif"]),
        (["masks", "--size=3"], ["--size=3: must be WIDTH,HEIGHT in inches"]),
        (["animation", "--workdir=@wmt", "--text=a", "--dpi=90"], ["--dpi: not for animation"]),
        ([], ["analogy, vectors, positions, masking, masks, result, confusion, curves"]),
        (["neighbours", "--workdir=@bert", "--layer=1"], ["--layer: needs --texts=..."]),
        (["analogy", "--workdir=@bert"], ["--words=man,king,woman or --analogies=FILE"]),
        (["analogy", "--workdir=@bert", "--words=a,cat"], ["--words=a,cat: must be three words"]),
        (["analogy", "--workdir=@bert", "--words=a,cat,§"], ["'§': not a word of the run's"]),
        (["neighbours", "--workdir=@bert", "--texts=/no"], ["/no"]),
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
        (["animation", "--workdir=@gpt", "--text=a cat"], ["a Transformer that translates"]),
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
        (["positions", "--kind=cross"], ["--kind=cross: must be one of sinusoidal, binary"]),
        (["positions", "--workdir=@bert", "--count=9"], ["--count and --workdir"]),
        (["vectors", "--workdir=@bert", "--words=cat,§"], ["'§' is not in the vocabulary"]),
        (["vectors", "--workdir=@bert", "--layer=1"], ["--layer: needs --texts=..."]),
        (["vectors", "--workdir=@bert", "--texts=x"], ["--word=... is missing"]),
        (["masking"], ["--text=... is missing"]),
        (["masking", "--workdir=@gpt", "--text=a cat"], ["a causal_lm run, which masks no tokens"]),
        (["masking", "--workdir=@bert", f"--text={'cat ' * 99}"], ["of config.task.phases"]),
    ],
)
def test_the_command_refuses(arguments, words, runs, tmp_path):
    flags = []
    for argument in arguments:
        family = argument.partition("@")[2] or "gpt"
        flags.append(argument.replace(f"@{family}", str(runs[family])))
    if flags and not any("output" in argument for argument in flags):
        flags.append(f"--output={tmp_path}/a.{'gif' if 'animation' in flags else 'png'}")
    refused(call("draw", *flags), *words)
    assert not list(tmp_path.glob("a.*"))


def test_a_picture_is_out_of_date_if_its_function_has_changed(monkeypatch):
    """And not if another function, a comment or a docstring has."""
    name = "pictures.learning_curves.curves"
    version, read = drawing_version(name), pathlib.Path.read_text
    source = pathlib.Path(learning_curves.__file__).read_text()

    def is_stale(old, new):
        assert source.count(old) == 1, old

        def changed(path, *options):
            is_it = path.stem == "learning_curves"
            return source.replace(old, new) if is_it else read(path, *options)

        monkeypatch.setattr(pathlib.Path, "read_text", changed)
        figure._names_of.cache_clear()
        drawing_version.cache_clear()
        return drawing_version(name) != version

    try:
        assert is_stale("figure = new_figure((12, 3.6 * num_rows), title)", "figure = None")
        assert is_stale("return np.interp(steps, *zip(*counts)), values", "return counts, values")
        assert not is_stale('axes.set(xlabel=xlabel, ylabel="accuracy")', "pass")
        assert not is_stale("Returns a figure of accuracies", "Draws accuracies")
    finally:
        monkeypatch.undo()
        figure._names_of.cache_clear()
        drawing_version.cache_clear()
