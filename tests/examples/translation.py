"""Sentence pairs in parallel files."""

from tests.conftest import write_pairs


def write(config, folder):
    return write_pairs(folder)
