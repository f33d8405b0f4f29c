"""Prompts that a model answers: JSON lines, or text with a prompt a line.

A line of *.jsonl is {"prompt": ...}, {"messages": [...]} or a JSON string. Other keys are not read.
"""

import dataclasses
from collections.abc import Iterator

from transformer_jax.config import UserError
from transformer_jax.data.sources.file_digests import sha256
from transformer_jax.data.sources.preferences import prompt_of
from transformer_jax.data.sources.tables import split_files
from transformer_jax.data.sources.text_files import from_json, text_lines
from transformer_jax.data.tokenizers.chat import Prompt


@dataclasses.dataclass(frozen=True)
class Prompts:
    """The prompts of files. Lines without text are left out."""

    paths: tuple[str, ...]

    def fingerprint(self) -> dict:
        return {"prompts": sha256(self.paths)}

    def __iter__(self) -> Iterator[Prompt]:
        for path in self.paths:
            for number, line in enumerate(text_lines(path), 1):
                if line.strip():
                    is_json = path.endswith(".jsonl")
                    yield _prompt(line, f"{path}:{number}") if is_json else line


def of_split(data, split: str) -> Prompts | None:
    """Returns the prompts of a split that `config.data` names; None where it names none."""
    paths = split_files(data, split)
    return paths and Prompts(paths)


def _prompt(line: str, where: str) -> Prompt:
    """Returns the prompt of a line. Raises UserError where it has none."""
    value = from_json(line, where)
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise UserError(f"{where}: not a JSON object with 'prompt', and no JSON string")
    return prompt_of(value, where)
