"""Wrong files of prompts: the error names the file, the entry and the fault."""

import pytest

from transformer_jax.config import UserError
from transformer_jax.inference import prompting


@pytest.mark.parametrize(
    "content, words",
    [
        ('{"items":\n [,]}', "not JSON (Expecting value: line 2 column 3"),
        ('{"items": [{"input": "\\ud83d", "output": "b"}]}', "half a character"),
        ("[" * 100_000, "not JSON"),
        (
            '{"items": [{"input": "a", "output": "x\\ny"}]}',
            "item 1: output 'x\\ny' cannot be generated",
        ),
        ('{"items": [{"input": "a", "output": " "}]}', "item 1: output ' ' cannot be generated"),
        ("[]", "not a JSON object with items, examples"),
        ("{}", "items is missing"),
        ('{"items": []}', "no items"),
        ('{"items": {}}', "items must be a list"),
        (
            '{"items": [{"input": "a", "output": "b"}, "c"]}',
            "item 2: not a JSON object with input, output, choices",
        ),
        ('{"items": [{"inptu": "a"}]}', "item 1: unknown key 'inptu'; did you mean input?"),
        ('{"items": [{"output": "a"}]}', "item 1: input is missing"),
        ('{"items": [{"input": 3}]}', "item 1: input must be a text"),
        ('{"items": [{"input": "a"}]}', "item 1: output is missing"),
        (
            '{"items": [{"input": "a", "output": "b"}], "examples": [{"input": "a"}]}',
            "example 1: output is missing",
        ),
        (
            '{"items": [{"input": "a", "output": "b", "choices": ["c", "d"]}]}',
            "item 1: output 'b' is not one of its choices",
        ),
        (
            '{"items": [{"input": "a", "output": "b"}], "choices": ["b"]}',
            "choices must be at least two different",
        ),
        ('{"items": [{"input": "a", "choices": ["b", " "]}]}', "item 1: choices must be"),
        (
            '{"items": [{"input": "a", "output": "b"}, '
            '{"input": "a", "output": "b", "choices": ["b", "c"]}]}',
            "item 2: has choices, but item 1 has none",
        ),
        (
            '{"items": [{"input": "a", "output": "b"}, {"input": "a"}], "choices": ["b", "c"]}',
            "item 2: has no output, but item 1 has",
        ),
        (
            '{"items": [{"input": "a", "output": "b"}], "template": "{input}"}',
            "template='{input}': must contain {input} and end with {output}",
        ),
        (
            '{"items": [{"input": "a", "output": "b"}], "normalize": "lenght"}',
            "normalize='lenght': must be one of none, length, unconditional",
        ),
        ('{"items": [{"input": "a", "output": "b"}], "seed": -1}', "seed=-1: must be at least 0"),
        ('{"items": [{"input": "a", "output": "b"}], "seed": "1"}', "seed must be a whole number"),
        (
            '{"items": [{"input": "a", "output": "b"}], "stop": ""}',
            "stop and answer_context must not be empty",
        ),
    ],
)
def test_a_wrong_file_is_refused(content, words, tmp_path):
    path = tmp_path / "task.json"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        prompting.read(str(path))
    assert str(error.value).startswith(str(path)) and words in str(error.value)
