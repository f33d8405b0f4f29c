"""Short documents."""

from tests.conftest import write_pairs


def write(config, folder):
    pairs = write_pairs(folder)
    return {f"data.{split}_files": pairs[f"data.{split}_source"] for split in ("train", "valid")}
