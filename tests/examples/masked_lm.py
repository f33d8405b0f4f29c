"""Documents of three sentences, one sentence per line."""

import pathlib

from tests.conftest import write_pairs


def write(config, folder):
    pairs = write_pairs(folder)
    files = {}
    for split in ("train", "valid"):
        lines = pathlib.Path(pairs[f"data.{split}_source"]).read_text().splitlines()
        documents = ["\n".join(lines[i : i + 3]) for i in range(0, len(lines), 3)]
        path = folder / f"{split}.documents"
        path.write_text("\n\n".join(documents))
        files[f"data.{split}_files"] = str(path)
    return files
