"""What the notebooks claim, their committed outputs show, and so do their cells when they run."""

import base64
import contextlib
import io
import json
import pathlib
import re

import matplotlib
import pytest
from PIL import Image

NOTEBOOKS = pathlib.Path(__file__).parent.parent / "notebooks"


def cells(notebook: str) -> dict[str, dict]:
    """Returns the cells of a notebook by their ids."""
    content = json.loads((NOTEBOOKS / f"{notebook}.ipynb").read_text())
    return {cell["id"]: cell for cell in content["cells"]}


def committed(notebook: str, cell: str) -> str:
    """Returns the text that a cell has printed, as it is committed."""
    outputs = cells(notebook)[cell]["outputs"]
    return "".join("".join(each["text"]) for each in outputs if each.get("name") == "stdout")


def progress(notebook: str, cell: str) -> str:
    """Returns the progress of a cell, which is a single output that is shown again and again."""
    outputs = cells(notebook)[cell]["outputs"]
    shown = [each for each in outputs if each["output_type"] == "display_data"]
    (text,) = [each["data"]["text/plain"] for each in shown if "image/png" not in each["data"]]
    return "".join(text)


def executed(notebook: str, *ids: str) -> str:
    """Runs cells in this process and returns what the last one prints."""
    namespace = {"__name__": "__main__"}
    for name in ids:
        lines = "".join(cells(notebook)[name]["source"]).splitlines()
        source = "\n".join(line for line in lines if not line.startswith("%"))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(source, f"{notebook}, {name}", "exec"), namespace)
    return printed.getvalue()


def numbers(text: str, before: str) -> list[float]:
    """Returns the numbers that stand after the words `before` in a text."""
    return [float(found) for found in re.findall(rf"{before} +(-?[\d.]+(?:e[+-]?\d+)?)", text)]


def rises(values: list[float]) -> bool:
    return all(low < high for low, high in zip(values, values[1:]))


# ------------------------------------------------- the claims, about the printed text of their cell


def likelier(text):
    """Of two continuations of one token, " range" is likelier; " range(10):" is so by the token."""
    found = {
        word: (float(total), int(count), float(mean))
        for word, total, count, mean in re.findall(
            r"P\('(.+?)' \| .+?\) = (-[\d.]+), (\d+) tokens, (-[\d.]+) a token", text
        )
    }
    assert found[" range"][1] == found[" return"][1] == 1
    assert found[" range"][0] > found[" return"][0] > found[" range(10):"][0]
    assert found[" range(10):"][2] > found[" return"][2]


def filled(text):
    """The words that fit a masked position come first, as nothing but its context tells."""
    first = [line.split()[:2] for line in text.splitlines() if line.startswith("    ")]
    words = [word for word, _ in first]
    assert words[1] == "exception" and words[3] in ("true", "false", "none")
    assert all(float(probability.strip(",")) > 0.1 for _, probability in (first[0], first[1]))


def fair(text):
    """Both starts learn the task; the pre-trained one needs a fraction of the updates."""
    runs = [line.partition(", rate")[::2] for line in text.splitlines()]
    accuracies = {"pretrained": [], "from scratch": []}
    for start, numbers in runs:
        accuracies[start].append([float(each) for each in re.findall(r"([\d.]+) at", numbers)])
    pretrained, scratch = accuracies.values()
    assert len(pretrained) == len(scratch) == 4
    assert min(run[0] for run in pretrained) > 0.95 > 0.6 > max(run[0] for run in scratch)
    assert min(run[-1] for run in pretrained + scratch) > 0.95


def fuzzy(text):
    """A sharp look-up of a key gives its value, and a query beside it the nearest key's."""
    assert "exact: 4098 None" in text
    values = {
        (int(factor), name): float(value)
        for factor, name, value in re.findall(r"factor +(\d+): (\w+) .* value (\d+)", text)
    }
    assert {values[0, name] for name in ("jack", "guido", "jacky")} == {4121}  # the mean
    assert [values[50, name] for name in ("jack", "sape", "guido", "jacky")] == [
        4098,
        4139,
        4127,
        4098,
    ]
    assert abs(values[5, "jacky"] - 4098) < abs(values[0, "jacky"] - 4098)


def translated(text):
    """The German pronoun has the gender of its noun, in the lecture's pair and in a new one."""
    pronouns = re.findall(r"weil (es|sie) zu (müde|breit|schwach|lang) war", text)
    assert pronouns == [("es", "müde"), ("sie", "breit"), ("es", "schwach"), ("sie", "lang")]


def looks_at_its_noun(text):
    """A head of the decoder attends from the pronoun to its noun much more than to the other."""
    margins = [float(each) for each in re.findall(r"'(-?[\d.]+)'", text)]
    assert len(margins) == 2 and min(margins) > 0.3


def scaled(text):
    """By width, unscaled scores get a larger variance and a smaller gradient; scaled ones don't."""
    lines = text.splitlines()
    for name, measures in (("unscaled", rises), ("scaled", None)):
        own = "\n".join(line for line in lines if f"  {name} " in line)
        variances, largest, gradients = (
            numbers(own, words)
            for words in ("variance of the scores", "largest weight", "norm of the gradient")
        )
        assert len(variances) == len(gradients) == 5
        if measures:
            assert rises(variances) and rises(largest) and rises(gradients[::-1])
            assert gradients[-1] < gradients[0] / 8
        else:
            assert max(variances) < 1.5 * min(variances)
            assert max(gradients) < 1.2 * min(gradients)


def counts(text):
    """P(dog | the) > P(the | the), from bigrams."""
    (dog,), (the,) = (numbers(text, rf"P\({word} \| the\) = .* =") for word in ("dog", "the"))
    assert dog > the == 0


def exploding(text):
    """A gain below 1 lets the gradient vanish, a large one explode, which clipping alone cures."""
    shares = numbers(text, "arrives")
    assert shares[0] < 1e-8 and rises(shares) and shares[-1] > 10
    longest, last = (numbers(text, words) for words in ("longest gradient", "last loss"))
    assert longest[0] > 1000 * longest[1] and last[1] < last[0] / 4  # not clipped, clipped


def samples(text):
    """Characters: small tables, invented words, long ways. Words: the opposite of each."""
    characters, words = text.split("words: ")
    tables, invented, arrives = (
        [pattern(part) for part in (characters, words)]
        for pattern in (
            lambda part: int(re.search(r"([\d,]+) of them", part)[1].replace(",", "")),
            lambda part: float(re.search(r"; ([\d.]+)%", part)[1]),
            lambda part: float(re.search(r"which ([\d.]+) of the gradient", part)[1]),
        )
    )
    assert tables[1] > 10 * tables[0]
    assert invented[0] > 1 and invented[1] == 0
    assert arrives[1] > arrives[0]


def sizes(text):
    """Of GPT-3, 175 billion parameters; the years are in order, and the sizes grow 800-fold."""
    rows = [line.split() for line in text.splitlines()]
    counted = {" ".join(row[1:-1]): int(row[-1].replace(",", "")) for row in rows}
    assert rises([float(row[0]) for row in rows])
    assert round(counted["GPT-3"] / 1e9) == 175
    assert 800 < counted["GPT-3"] / counted["Transformer big"] < 850


CLAIMS = {
    ("2_gpt", "likelier"): likelier,
    ("3_bert", "fill"): filled,
    ("3_bert", "fair"): fair,
    ("4_attention", "fuzzy"): fuzzy,
    ("4_attention", "cell-11"): scaled,
    ("4_attention", "pronouns-translated"): translated,
    ("4_attention", "pronouns-decoder"): looks_at_its_noun,
    ("5_scaling", "sizes"): sizes,
    ("8_history", "counts"): counts,
    ("8_history", "exploding"): exploding,
    ("8_history", "samples"): samples,
}


@pytest.mark.parametrize("notebook, cell", CLAIMS, ids=lambda value: value)
def test_the_committed_output_shows_it(notebook, cell):
    CLAIMS[notebook, cell](committed(notebook, cell))


@pytest.fixture
def printed(request, tmp_path, monkeypatch):
    """Returns what the last of some cells prints. Its programs don't count as the test's."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    return executed(*request.param)


@pytest.mark.parametrize(
    "printed, claim",
    [
        (("4_attention", "cell-2", "fuzzy"), fuzzy),
        (("4_attention", "cell-2", "cell-11"), scaled),
        (("8_history", "cell-2", "counts"), counts),
        pytest.param(
            ("8_history", "cell-2", "cell-10", "exploding"), exploding, marks=pytest.mark.full
        ),
        pytest.param(
            ("8_history", "cell-2", "counts", "letters", "samples"), samples, marks=pytest.mark.full
        ),
        pytest.param(("5_scaling", "cell-2", "sizes"), sizes, marks=pytest.mark.full),
    ],
    indirect=["printed"],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_its_cell_shows_it(printed, claim):
    claim(printed)


# --------------------------------------------------------- learning from rewards, and the animation


def test_rewards_and_divergences_are_shown_as_they_grow():
    """PPO and GRPO: the reward rises, and the policy names more people than the SFT model does."""
    for cell in ("ppo", "grpo"):
        log = progress("9_preferences", cell)
        rewards, divergences = (
            numbers(log, rf"step [\d,]+/[\d,]+ .*?\b{name}") for name in ("reward", "kl")
        )
        assert len(rewards) == len(divergences) == 6
        assert rewards[-1] > rewards[0] and divergences[-1] > divergences[0]
    shares = dict(
        re.findall(r"(.+?): ([\d.]+)% name a person", committed("9_preferences", "measure"))
    )
    first = committed("9_preferences", "cell-12").split()
    sft = float(first[first.index("1") + 1].rstrip("%"))
    assert {*shares} == {"DPO, beta 1.0", "DPO, beta 0.1", "PPO", "GRPO"}
    assert all(float(share) > 2 * sft for share in shares.values())


def test_the_animation_has_a_frame_for_each_step():
    """The source, two layers of the encoder, and each token of the translation."""
    outputs = cells("8_history")["steps"]["outputs"]
    (picture,) = [
        each["data"]["image/gif"] for each in outputs if "image/gif" in each.get("data", {})
    ]
    with Image.open(io.BytesIO(base64.b64decode(picture))) as animation:
        (count,) = re.findall(r"^(\d+) frames", committed("8_history", "steps"))
        assert animation.n_frames == int(count) > 3
