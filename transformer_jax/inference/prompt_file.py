"""The file of a task for in-context evaluation: items, examples, and the form of the prompts."""

import dataclasses
import difflib
from collections.abc import Iterable
from dataclasses import field

from transformer_jax.config import UserError
from transformer_jax.data.sources.text_files import from_json
from transformer_jax.storage import buckets, errors

NORMALIZE = ("none", "length", "unconditional")
_TYPE_NAMES = {list: "a list", int: "a whole number"}


@dataclasses.dataclass(frozen=True)
class Item:
    """A text to complete, or an example with its completion."""

    input: str
    output: str | None = None  # the right completion
    choices: list = field(default_factory=list)  # possible completions; (): those of the file


@dataclasses.dataclass(frozen=True)
class Prompts:
    """A task as prompts.

    With choices, the likeliest choice is the prediction (Brown et al. 2020, section 2.4). Without
    choices, a completion is generated greedily; it is right if it equals `output`.

    `normalize` decides which score of a choice is compared: "none": log P(choice | prompt);
    "length": the same per token of the choice; "unconditional": the same less
    log P(choice | answer_context).
    """

    items: list
    examples: list = field(default_factory=list)
    description: str = ""
    template: str = "{input} => {output}"
    separator: str = "\n"  # between description, examples and item
    choices: list = field(default_factory=list)  # of the items that have no choices
    normalize: str = "length"
    answer_context: str = "Answer: "
    stop: str = "\n"  # ends a generated completion
    seed: int = 0  # decides which examples an item is shown

    def text(self, item: Item, examples: Iterable[Item] = ()) -> str:
        """Returns the prompt of an item."""
        template = self.template.removesuffix("{output}")
        parts = [self.description] if self.description else []
        parts += [template.replace("{input}", each.input) + each.output for each in examples]
        parts.append(template.replace("{input}", item.input))
        return self.separator.join(parts)

    def choices_of(self, item: Item) -> list[str]:
        return item.choices or self.choices


def read(path: str) -> Prompts:
    """Reads the JSON file of a task: an object with the fields of Prompts.

    Items and examples are objects with the fields of Item. Raises UserError for a wrong file.
    """
    try:
        with errors.reading(path):
            content = from_json(buckets.path(path).read_text("utf-8-sig"), path)
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8") from None
    prompts = _of_json(Prompts, content, path)
    prompts = dataclasses.replace(
        prompts,
        items=_entries(prompts.items, f"{path}: item"),
        examples=_entries(prompts.examples, f"{path}: example"),
    )
    _check(prompts, path)
    return prompts


def _entries(entries: list, name: str) -> list[Item]:
    return [_of_json(Item, entry, f"{name} {number}") for number, entry in enumerate(entries, 1)]


def _of_json(cls, values, where: str):
    """Returns the object of a dataclass from a JSON object with its fields."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    if not isinstance(values, dict):
        raise UserError(f"{where}: not a JSON object with {', '.join(fields)}")
    for key, value in values.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(
                f"{where}: unknown key {key!r}{hint}; the keys are: {', '.join(fields)}"
            )
        if not isinstance(value, fields[key].type):
            kind = _TYPE_NAMES.get(fields[key].type, "a text")
            raise UserError(f"{where}: {key} must be {kind}")
    if (first := next(iter(fields))) not in values:
        raise UserError(f"{where}: {first} is missing")
    choices = values.get("choices", [])
    if choices and not _are_choices(choices):
        raise UserError(f"{where}: choices must be at least two different texts, none empty")
    return cls(**values)


def _are_choices(choices: list) -> bool:
    are_texts = all(isinstance(choice, str) and choice.strip() for choice in choices)
    return are_texts and len(set(choices)) == len(choices) > 1


def _check(prompts: Prompts, path: str) -> None:
    if not prompts.items:
        raise UserError(f"{path}: no items")
    template = prompts.template
    if "{input}" not in template or not template.endswith("{output}"):
        raise UserError(
            f"{path}: template={template!r}: must contain {{input}} and end with {{output}}"
        )
    if prompts.normalize not in NORMALIZE:
        raise UserError(
            f"{path}: normalize={prompts.normalize!r}: must be one of {', '.join(NORMALIZE)}"
        )
    if prompts.seed < 0:
        raise UserError(f"{path}: seed={prompts.seed}: must be at least 0")
    if not prompts.stop or not prompts.answer_context.strip():
        raise UserError(f"{path}: stop and answer_context must not be empty")
    for number, item in enumerate(prompts.items, 1):
        _check_item(prompts, item, f"{path}: item {number}")
    for number, example in enumerate(prompts.examples, 1):
        where = f"{path}: example {number}"
        if example.output is None:
            raise UserError(f"{where}: output is missing")
        _check_output(prompts, example, where)


def _check_item(prompts: Prompts, item: Item, where: str) -> None:
    first = prompts.items[0]
    choices = prompts.choices_of(item)
    if bool(choices) != bool(prompts.choices_of(first)):
        difference = "no choices, but item 1 has" if not choices else "choices, but item 1 has none"
        raise UserError(f"{where}: has {difference}")
    if (item.output is None) != (first.output is None):
        missing = item.output is None
        difference = "no output, but item 1 has" if missing else "an output, but item 1 has none"
        raise UserError(f"{where}: has {difference}")
    if item.output is None and not choices:
        raise UserError(f"{where}: output is missing")
    _check_output(prompts, item, where)
    if not choices and (not item.output.strip() or prompts.stop in item.output):
        raise UserError(
            f"{where}: output {item.output!r} cannot be generated: it is empty, or contains "
            f"stop={prompts.stop!r}"
        )


def _check_output(prompts: Prompts, entry: Item, where: str) -> None:
    choices = prompts.choices_of(entry)
    if entry.output is not None and choices and entry.output not in choices:
        raise UserError(f"{where}: output {entry.output!r} is not one of its choices")
