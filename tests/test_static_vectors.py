"""Neighbours and analogies of static vectors, and the commands that show and write them."""

import numpy as np
import pytest

from tests.few_devices import few_devices  # noqa: F401
from tests.programs import call
from tests.tasks.test_word_vectors import build
from transformer_jax.config import UserError
from transformer_jax.data import array_files
from transformer_jax.data.tokenizers.words import Words
from transformer_jax.inference import static_vectors
from transformer_jax.inference.static_vectors import StaticVectors
from transformer_jax.runs.open import open_run
from transformer_jax.runs.train import train

WORDS = ["man", "woman", "king", "queen", "apple"]


@pytest.fixture(scope="module")
def vectors():
    text = " ".join(word for number, word in enumerate(WORDS, 1) for _ in range(10 - number))
    tokenizer = Words.train([text], 100, False)
    table = np.random.default_rng(0).normal(size=(tokenizer.vocab_size, 4)).astype(np.float32)
    # King is man and a crown, a little of it; queen is woman and a crown.
    of_words = [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0.3, 0], [0, 1, 0.3, 0], [0, 0, 0, 1]]
    table[[tokenizer.encode(word)[0] for word in WORDS]] = of_words
    return StaticVectors(tokenizer, table)


def test_an_analogy_leaves_out_its_own_words(vectors):
    # Without queen, the nearest would be woman, which is in the question.
    (answer, cosine), *_ = vectors.analogy(("man", "king", "woman"), 2)
    a, b, c, d = (vectors.unit[vectors.id_of(word)] for word in ("man", "king", "woman", "queen"))
    expected = (b - a + c) @ d / np.linalg.norm(b - a + c)
    assert answer == "queen" and cosine == pytest.approx(expected, rel=1e-5)
    assert vectors.nearest("king", 1)[0][0] == "man"
    with pytest.raises(UserError, match="'prince': not a word of the run's vocabulary"):
        vectors.analogy(("man", "king", "prince"), 1)


def test_special_tokens_are_neighbors_of_no_word(vectors):
    """Their vectors are never trained, and may lie anywhere."""
    tokenizer, table = vectors.tokenizer, vectors.table.copy()
    king, queen = (vectors.id_of(word) for word in ("king", "queen"))
    table[tokenizer.special] = table[king]
    table[[tokenizer.unk_id, tokenizer.pad_id]] = table[queen]
    others = StaticVectors(tokenizer, table)
    assert others.nearest("king", 9) == vectors.nearest("king", 9)
    near = [word for word, _ in others.nearest("king", 9)]
    assert near[:2] == ["man", "queen"] and {*near[2:]} == {"woman", "apple"}
    words = ("man", "king", "woman")
    assert others.analogy(words, 2) == vectors.analogy(words, 2)
    question = np.array([[vectors.id_of(word) for word in words]])
    assert others.answers(question).tolist() == [queen]
    # The mean that is subtracted for a Transformer leaves them out of the neighbors, too.
    assert {word for word, _ in others.centred.nearest("king", 9)} == {*WORDS} - {"king"}


def test_accuracies_are_by_section(vectors, tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text(
        ": royals\nMan King Woman Queen\nwoman queen man king\nman king woman prince\n\n"
        ": other\nman king woman apple\n"
    )
    *sections, total = static_vectors.accuracies(vectors, str(path))
    assert [(each.name, each.right, each.known, each.unknown) for each in sections] == [
        ("royals", 2, 2, 1),
        ("other", 0, 1, 0),
    ]
    assert (total.name, total.right, total.known, total.unknown) == ("all", 2, 3, 1)
    assert sections[0].accuracy == 1
    path.write_text("man king woman\n")
    with pytest.raises(UserError, match='questions.txt:1: must be four words, or ": SECTION"'):
        static_vectors.accuracies(vectors, str(path))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("static")
    train(build(folder), folder / "run")
    return folder / "run"


def test_the_commands_show_and_write_the_vectors_of_a_run(run, tmp_path):
    task, params = open_run(run)
    known = task.tokenizer.pieces([6, 7, 8, 9])
    (tmp_path / "questions.txt").write_text(f": one\n{' '.join(known)}\n")
    picture = f"--output={tmp_path}/a.png"
    near = call("draw", "neighbours", f"--workdir={run}", f"--word={known[0]}", picture)
    *lines, path = near.stdout.splitlines()
    assert near.returncode == 0 and path == f"{tmp_path}/a.png" and len(lines) == 8, near.stderr
    words = f"--words={','.join(known[:3])}"
    solved = call("draw", "analogy", f"--workdir={run}", words, picture)
    assert solved.returncode == 0 and not {*known[:3]} & {
        line.split()[0] for line in solved.stdout.splitlines()
    }, solved.stderr
    questions = f"--analogies={tmp_path}/questions.txt"
    by_section = call("draw", "analogy", f"--workdir={run}", questions, picture)
    assert by_section.stdout.splitlines()[0].startswith("one  "), by_section.stderr

    for name in ("a.bin", "a.txt"):
        done = call("convert", f"--workdir={run}", f"--to_vectors={tmp_path}/{name}")
        assert done.returncode == 0, done.stderr
        written = dict(array_files.read(tmp_path / name))
        ids = np.flatnonzero(~task.tokenizer.special).tolist()
        assert list(written) == task.tokenizer.pieces(ids)
        table = np.asarray(params["token_embed"]["embedding"])
        np.testing.assert_array_equal(np.stack([*written.values()]), table[ids])
