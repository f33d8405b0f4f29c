"""Files of word vectors: those that gensim writes are read, and it reads those that are written."""

import numpy as np
import pytest

from tests.fixtures.make_word_vectors import HERE, WORDS, vectors
from transformer_jax.config import UserError
from transformer_jax.data import array_files


@pytest.mark.parametrize("name", ["word_vectors.txt", "word_vectors.bin"])
def test_files_of_gensim_are_read(name):
    words, read = zip(*array_files.read(HERE / name))
    assert list(words) == WORDS and array_files.width(HERE / name) == 3
    np.testing.assert_array_equal(np.stack(read), vectors())


@pytest.mark.parametrize("name", ["a.txt", "a.bin"])
def test_written_files_are_read_by_both(name, tmp_path):
    array_files.write(tmp_path / name, WORDS, vectors())
    words, read = zip(*array_files.read(tmp_path / name))
    assert list(words) == WORDS
    np.testing.assert_array_equal(np.stack(read), vectors())
    gensim = pytest.importorskip("gensim.models")
    theirs = gensim.KeyedVectors.load_word2vec_format(tmp_path / name, binary=name.endswith(".bin"))
    assert theirs.index_to_key == WORDS
    np.testing.assert_array_equal(theirs.vectors, vectors())


def test_the_format_of_glove_has_no_first_line(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("the 1 -2.5 3e-1\n. . . 4 5 6\n")
    words, read = zip(*array_files.read(path))
    assert words == ("the", ". . .")
    np.testing.assert_array_equal(np.stack(read), np.float32([[1, -2.5, 0.3], [4, 5, 6]]))


@pytest.mark.parametrize("word", ["at name@domain.com", ". . .", "in 2004", "1 2 3", "\u00a0 x"])
def test_the_first_word_of_glove_may_have_spaces(word, tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(f"{word} 1 -2.5 3e-1\nthe 4 5 6\nnan 7 8 9\nin 3 1 2 3\nof 0 0 0\n")
    words, read = zip(*array_files.read(path))
    assert words == (word, "the", "nan", "in 3", "of") and array_files.width(path) == 3
    rows = [[1, -2.5, 0.3], [4, 5, 6], [7, 8, 9], [1, 2, 3], [0, 0, 0]]
    np.testing.assert_array_equal(np.stack(read), np.float32(rows))


@pytest.mark.parametrize(
    "name, content, error",
    [
        ("a.txt", b"a 1 2 3\nb 1 2\n", "a.txt:2: .* is not a word and 3 numbers"),
        ("a.txt", b"a b 1 2\nc 1\nd 1 2\n", "a.txt:2: .* is not a word and 2 numbers"),
        ("a.txt", b"word x y z\nb 1 2 3\n", "a.txt:1: .* is not a word and 3 numbers"),
        ("a.txt", b"a b c\n", "a.txt:1: .* is not a word and 2 numbers"),
        ("a.txt", b"2 2\na 1 2\n", "has 1 words, but its first line says 2"),
        ("a.txt", b"1 2\na 1 x\n", "a.txt:2: .* is not a word and 2 numbers"),
        ("a.txt", b"a 1 2\n\n", "a.txt:2: .* is not a word and 2 numbers"),
        ("a.txt", b"1 2\n 1 2\n", "a.txt:2: .* is not a word and 2 numbers"),
        ("a.txt", b"1 0\na\n", "a.txt:1: vectors of 0 numbers"),
        ("a.txt", b"1 99999999999999999999\na 1\n", 'must be "count width"'),
        ("a.txt", b"1 2\na 1 nan\n", "the vector of 'a' is not finite"),
        ("a.txt", b"1 2\na 1 1e60\n", "the vector of 'a' is not finite"),
        ("a.bin", b"1 1\na \x00\x00\x80\x7f", "the vector of 'a' is not finite"),
        ("a.txt", b"1 3\na 1 2\n", "is not a word and 3 numbers"),
        ("a.txt", b"a\n", 'must be "count width"'),
        ("a.bin", b"word\n", 'must be "count width"'),
        ("a.bin", b"1 2\na 1234", "ends within word 1, or is not a binary file"),
        ("a.bin", b"1 1\n\xff 1234", "word 1, at byte 0, is not UTF-8"),
    ],
)
def test_other_files_are_refused(name, content, error, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=error):
        list(array_files.read(tmp_path / name))


def test_a_word_with_a_space_is_refused(tmp_path):
    with pytest.raises(UserError, match="the token 'a b' has white space"):
        array_files.write(tmp_path / "a.txt", ["a b"], np.zeros((1, 2)))
