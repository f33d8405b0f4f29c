"""Short documents, or sentence pairs where the config has a marker between their sides."""

from tests.conftest import write_pairs


def write(config, folder):
    pairs = write_pairs(folder)
    if config.data.marker:
        return pairs
    return {f"data.{split}_files": pairs[f"data.{split}_source"] for split in ("train", "valid")}
