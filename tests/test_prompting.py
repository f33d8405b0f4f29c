"""In-context evaluation: the prompts, the three ways of comparing choices, and what a real model is
asked.
"""

import json
import re
import types

import jax
import jax.numpy as jnp
import pytest

from tests.programs import call, refused
from transformer_jax.config import UserError, experiment
from transformer_jax.inference import prompt_file, prompting
from transformer_jax.inference.prompt_file import Item, Prompts
from transformer_jax.runs import record
from transformer_jax.runs.open import open_run
from transformer_jax.runs.resolve import make_task
from transformer_jax.training.loop import Program, run

FRENCH = {
    "description": "Translate English to French:",
    "items": [{"input": "cheese", "output": "fromage"}, {"input": "mint", "output": "menthe"}],
    "examples": [{"input": f"word {n}", "output": f"mot {n}"} for n in range(8)],
}


def gpt_run(folder, num_steps=2):
    """The workdir of a tiny GPT that has read about kings and dogs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.txt").write_text(
        "\n\n".join(
            f"the king number {n} sings to a dog\nand the dog sings to the king" for n in range(200)
        )
    )
    config = experiment(
        model=dict(
            name="gpt",
            vocab_size=300,
            d_model=16,
            num_layers=2,
            num_heads=2,
            max_length=64,
            dropout=0.0,
            attention_dropout=0.0,
        ),
        task=dict(name="causal_lm", length=32),
        data=dict(
            train_files=str(folder / "train.txt"), tokenizer="byte_bpe", cache=str(folder / "cache")
        ),
        train=dict(num_steps=num_steps, batch=8, log_every=num_steps, eval_every=num_steps),
        optimizer=dict(learning_rate=0.02),
        checkpoint=dict(every=num_steps, best_metric=""),
        decode=dict(batch=4),
    )
    task, workdir = make_task(config), folder / "run"
    workdir.mkdir()
    program = Program.of(config, task, jax.devices()[:1])
    record.begin(config, task, workdir)
    run(config, task, workdir, program)
    return workdir


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return gpt_run(tmp_path_factory.mktemp("gpt"))


@pytest.fixture(scope="module")
def opened(workdir):
    return open_run(workdir, "latest")


@pytest.fixture
def file(tmp_path):
    """file(content, **changes) -> path of the JSON file."""

    def write(content=FRENCH, **changes):
        path = tmp_path / "task.json"
        path.write_text(
            content if isinstance(content, str) else json.dumps({**content, **changes}),
            encoding="utf-8",
        )
        return str(path)

    return write


def stub(likelihoods=(), answers=(), max_length=1000):
    """A task whose tokens are characters: {(context, choice): (log P, tokens)}, and a written text
    for each prompt in `answers`.
    """
    asked = []

    def log_likelihoods(params, pairs):
        return (
            types.SimpleNamespace(log_prob=likelihoods[pair][0], tokens=likelihoods[pair][1])
            for pair in pairs
        )

    def generate(params, prompts, *, max_tokens, how, stop, window):
        assert window == "refuse" and how.temperature == 0
        assert all(len(prompt) + max_tokens <= max_length for prompt in prompts)
        asked.extend((prompt, tuple(stop)) for prompt in prompts)
        return (types.SimpleNamespace(text=answer) for answer in answers)

    tokenizer = types.SimpleNamespace(encode=lambda texts: [list(text) for text in texts])
    return types.SimpleNamespace(
        model=types.SimpleNamespace(max_length=max_length),
        tokenizer=tokenizer,
        log_likelihoods=log_likelihoods,
        generate=generate,
        asked=asked,
        with_start=lambda ids: ids,
    )


def test_a_prompt_is_the_papers(file):
    """Figure 2.1 of Brown et al. 2020."""
    prompts = prompt_file.read(
        file(
            examples=[
                {"input": "sea otter", "output": "loutre de mer"},
                {"input": "peppermint", "output": "menthe poivrée"},
            ]
        )
    )
    text = "Translate English to French:\nsea otter => loutre de mer\npeppermint => menthe poivrée\ncheese => "
    assert prompts.text(prompts.items[0], prompts.examples) == text
    assert Prompts([]).text(Item("{output}")) == "{output} => "  # an input is no template


def test_an_item_is_shown_examples_of_its_own_and_more_shots_only_add_some(file):
    prompts = prompt_file.read(file())
    shown = {}
    for shots in (0, 1, 4, 8):
        texts, shortened = prompting._texts(stub(), prompts, shots, 1000)
        shown[shots] = [re.findall(r"word \d", text) for text in texts]
        assert shortened == 0 and all(len(set(words)) == shots for words in shown[shots])
        assert texts == prompting._texts(stub(), prompts, shots, 1000)[0]
    assert (
        shown[4][0][:1] == shown[1][0]
        and shown[8][0][:4] == shown[4][0]
        and shown[8][0] != shown[8][1]
    )
    other = prompt_file.read(file(seed=1))
    assert (
        prompting._texts(stub(), other, 8, 1000)[0] != prompting._texts(stub(), prompts, 8, 1000)[0]
    )


@pytest.mark.parametrize(
    "normalize, expected", [("none", "no"), ("length", "certainly"), ("unconditional", "maybe")]
)
def test_the_three_ways_to_compare_choices(normalize, expected):
    """Section 2.4: sums -2, -4, -3; per token -2, -0.8, -1.5; less the unconditional ones 0, 0, 4."""
    choices = {"no": (-2.0, 1, -2.0), "certainly": (-4.0, 5, -4.0), "maybe": (-3.0, 2, -7.0)}
    table = {("Is it? ", choice): (given, tokens) for choice, (given, tokens, _) in choices.items()}
    table |= {
        ("Answer: ", choice): (alone, tokens) for choice, (_, tokens, alone) in choices.items()
    }
    assert prompting.classify(
        stub(table), None, ["Is it?"], list(choices), normalize=normalize
    ) == [expected]
    prompts = Prompts(
        [Item("Is it?", "maybe")],
        template="{input} {output}",
        choices=list(choices),
        normalize=normalize,
    )
    right = float(expected == "maybe")
    assert prompting.evaluate(stub(table), None, prompts) == {
        "shots": 0,
        "items": 1,
        "shortened": 0,
        "accuracy": right,
        "accuracy_by_output": {"maybe": right},
    }


def test_exact_match_counts_whole_answers_alone(file):
    prompts = prompt_file.read(file())
    task = stub(answers=[" fromage ", "menthe poivrée"])
    assert prompting.evaluate(task, None, prompts, 1) == {
        "shots": 1,
        "items": 2,
        "shortened": 0,
        "accuracy": 0.5,
    }
    # no space that the next token has
    assert all(prompt.endswith("=>") and stop == ("\n",) for prompt, stop in task.asked)


def test_examples_that_do_not_fit_are_left_out_and_counted(file, capsys):
    prompts = prompt_file.read(file())
    task = stub(answers=["fromage", "menthe"], max_length=90)
    found = prompting.evaluate(task, None, prompts, 8)
    assert (
        found["shortened"] == 2
        and "8 shots: 2 of 2 items are shown fewer examples" in capsys.readouterr().err
    )
    # 28 of the description, 16 of an example, 10 and 8 of the items, 16 of the completion
    assert [prompt.count("word") for prompt, _ in task.asked] == [2, 2]
    with pytest.raises(UserError, match="item 1: .*max_length=40, even without examples"):
        prompting.evaluate(stub(max_length=40), None, prompts)
    with pytest.raises(UserError, match="9 shots: there are 8 examples"):
        prompting.evaluate(task, None, prompts, 9)


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
            '{"items": [{"input": "a", "output": "b"}, {"input": "a", "output": "b", "choices": ["b", "c"]}]}',
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
def test_a_file_that_is_wrong_is_refused(file, content, words):
    path = file(content)
    with pytest.raises(UserError) as refusal:
        prompt_file.read(path)
    assert str(refusal.value).startswith(path) and words in str(refusal.value)


def test_a_real_model_takes_the_likeliest_choice(opened):
    task, params = opened
    texts, labels = ["the king sings to the", "a dog", ""], ["dog", "king and", "number 7"]
    found = prompting.classify(task, params, texts, labels, "{input} {output}", normalize="none")

    def log_prob(text, label):
        start = [] if text else [task.tokenizer.eos_id]
        whole = start + task.tokenizer.encode([f"{text} {label}"])[0]
        log_p = jax.nn.log_softmax(task.model.apply({"params": params}, jnp.array([whole[:-1]])))[0]
        return sum(
            float(log_p[i - 1, whole[i]])
            for i in range(len(start + task.tokenizer.encode([text])[0]), len(whole))
        )

    scores = [[log_prob(text, label) for label in labels] for text in texts]
    assert found == [labels[row.index(max(row))] for row in scores]
    exact = prompting.evaluate(
        task,
        params,
        Prompts([Item("the king", "sings"), Item("the", "dog")], template="{input} {output}"),
    )
    assert exact["items"] == 2 and 0 <= exact["accuracy"] <= 1


def test_a_token_across_the_border_is_the_continuations(opened):
    task, params = opened
    pieces = lambda text: task.tokenizer.pieces(task.tokenizer.encode([text])[0])
    assert pieces("the king")[-1] == "▁king" and len(pieces("the ki")) >= 2
    across, whole = task.log_likelihoods(params, [("the ki", "ng"), ("the", " king")])
    assert across == whole and across.tokens == 1


def test_the_command_prints_every_setting(workdir, file):
    path = file(examples=FRENCH["examples"][:2])
    done = call(
        "evaluate", f"--workdir={workdir}", "--step=latest", f"--prompts={path}", "--shots=0,1,2"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (
        found["prompts"] == path
        and [result["shots"] for result in found["results"]] == [0, 1, 2]
        and found["results"][0]["accuracy"] == 0
    )
    refused(
        call("evaluate", f"--workdir={workdir}", f"--prompts={path}", "--shots=3"),
        "--shots=3",
        "has 2 examples",
    )
    refused(call("evaluate", f"--workdir={workdir}", "--shots=3"), "--shots needs --prompts")
