"""In-context evaluation: the prompts, the three ways to compare choices, and a real model."""

import json
import pathlib
import re
import types

import jax
import numpy as np
import pytest
import scipy.special

from tests.jitted import jitted
from tests.programs import call, refused
from transformer_jax.config import UserError, experiment
from transformer_jax.inference import prompting
from transformer_jax.inference.prompting import Item, Prompts
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.spec import make_task
from transformer_jax.training.step import Program
from transformer_jax.training.trainer import run

ROOT = pathlib.Path(__file__).parent.parent
FRENCH = {
    "description": "Translate English to French:",
    "items": [{"input": "cheese", "output": "fromage"}, {"input": "mint", "output": "menthe"}],
    "examples": [{"input": f"word {n}", "output": f"mot {n}"} for n in range(8)],
}


def gpt_run(folder, num_steps=2):
    """Returns the workdir of a tiny GPT that is trained on texts about kings and dogs."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "the king number {} sings to a dog\nand the dog sings to the king"
    (folder / "train.txt").write_text("\n\n".join(text.format(n) for n in range(200)))
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
    spec.begin(config, task, workdir)
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
    """file(**changes) -> path of the JSON file of FRENCH with changes."""

    def write(**changes):
        path = tmp_path / "task.json"
        path.write_text(json.dumps(FRENCH | changes), encoding="utf-8")
        return str(path)

    return write


def stub(likelihoods=(), texts=(), max_length=1000):
    """Returns a task whose tokens are characters.

    `likelihoods` is {(context, choice): (log P, tokens)}; `texts` has a text for each prompt.
    The list `requests` of the task collects (prompt, stop strings).
    """
    requests = []

    def log_likelihoods(params, pairs):
        return (
            types.SimpleNamespace(log_prob=likelihoods[pair][0], tokens=likelihoods[pair][1])
            for pair in pairs
        )

    def generate(params, prompts, *, max_tokens, how, stop, window):
        assert window == "refuse" and how.temperature == 0
        assert all(len(prompt) + max_tokens <= max_length for prompt in prompts)
        requests.extend((prompt, tuple(stop)) for prompt in prompts)
        return (types.SimpleNamespace(text=text) for text in texts)

    tokenizer = types.SimpleNamespace(encode=lambda texts: [list(text) for text in texts])
    return types.SimpleNamespace(
        model=types.SimpleNamespace(max_length=max_length, window=max_length),
        tokenizer=tokenizer,
        log_likelihoods=log_likelihoods,
        generate=generate,
        requests=requests,
        with_start=lambda ids: ids,
    )


def test_a_prompt_is_that_of_the_paper(file):
    """Figure 2.1 of Brown et al. 2020."""
    prompts = prompting.read(
        file(
            examples=[
                {"input": "sea otter", "output": "loutre de mer"},
                {"input": "peppermint", "output": "menthe poivrée"},
            ]
        )
    )
    assert prompts.text(prompts.items[0], prompts.examples) == (
        "Translate English to French:\nsea otter => loutre de mer\n"
        "peppermint => menthe poivrée\ncheese => "
    )
    # An input is not read as a template.
    assert Prompts([]).text(Item("{output}")) == "{output} => "


def test_more_shots_add_examples_to_those_of_an_item(file):
    prompts = prompting.read(file())
    examples = {}
    for shots in (0, 1, 4, 8):
        texts, shortened = prompting._texts(stub(), prompts, shots, 1000)
        examples[shots] = [re.findall(r"word \d", text) for text in texts]
        assert shortened == 0 and all(len(set(words)) == shots for words in examples[shots])
        assert texts == prompting._texts(stub(), prompts, shots, 1000)[0]
    assert examples[4][0][:1] == examples[1][0] and examples[8][0][:4] == examples[4][0]
    assert examples[8][0] != examples[8][1]
    with_other_seed, _ = prompting._texts(stub(), prompting.read(file(seed=1)), 8, 1000)
    assert with_other_seed != texts


@pytest.mark.parametrize(
    "normalize, expected", [("none", "no"), ("length", "certainly"), ("unconditional", "maybe")]
)
def test_the_three_ways_to_compare_choices(normalize, expected):
    """Section 2.4. The scores of no, certainly and maybe are:

    -2, -4, -3 (none); -2, -0.8, -1.5 (length); 0, 0, 4 (unconditional).
    """
    table = {
        ("Is it? ", "no"): (-2.0, 1),
        ("Is it? ", "certainly"): (-4.0, 5),
        ("Is it? ", "maybe"): (-3.0, 2),
        ("Answer: ", "no"): (-2.0, 1),
        ("Answer: ", "certainly"): (-4.0, 5),
        ("Answer: ", "maybe"): (-7.0, 2),
    }
    choices = ["no", "certainly", "maybe"]
    labels = prompting.classify(stub(table), None, ["Is it?"], choices, normalize=normalize)
    assert labels == [expected]
    prompts = Prompts(
        [Item("Is it?", "maybe")],
        template="{input} {output}",
        choices=choices,
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


def test_only_whole_completions_are_right(file):
    prompts = prompting.read(file())
    task = stub(texts=[" fromage ", "menthe poivrée"])
    assert prompting.evaluate(task, None, prompts, 1) == {
        "shots": 1,
        "items": 2,
        "shortened": 0,
        "accuracy": 0.5,
    }
    # The space belongs to the next token.
    assert all(prompt.endswith("=>") and stop == ("\n",) for prompt, stop in task.requests)


def test_the_first_prompts_and_their_completions_are_printed(file, capsys):
    prompts = prompting.read(file())
    prompting.evaluate(stub(texts=["fromage", "menthe"]), None, prompts)
    printed = capsys.readouterr().err
    assert "Translate English to French:\ncheese =>" in printed
    assert f"-> fromage (right: {prompts.items[0].output})" in printed


def test_the_prompt_file_of_the_documentation_is_that_of_the_paper(tmp_path):
    page = (ROOT / "docs" / "language_models.md").read_text()
    written = page.partition("translate.json <<'JSON'\n")[2].partition("\nJSON")[0]
    (tmp_path / "translate.json").write_text(written)
    prompts = prompting.read(str(tmp_path / "translate.json"))
    # Figure 2.1 of Brown et al. 2020, with its spelling.
    assert prompts.text(prompts.items[0], prompts.examples) == (
        "Translate English to French:\nsea otter => loutre de mer\npeppermint => menthe poivrée\n"
        "plush girafe => girafe peluche\ncheese => "
    )


def test_examples_that_do_not_fit_are_left_out_and_counted(file, capsys):
    prompts = prompting.read(file())
    task = stub(texts=["fromage", "menthe"], max_length=90)
    results = prompting.evaluate(task, None, prompts, 8)
    assert results["shortened"] == 2
    assert "8 shots: 2 of 2 items are shown fewer examples" in capsys.readouterr().err
    # The description has 28 tokens, an example 16, the items 10 and 8, a completion 16.
    assert [prompt.count("word") for prompt, _ in task.requests] == [2, 2]
    with pytest.raises(UserError, match="item 1: .*max_length=40, even without examples"):
        prompting.evaluate(stub(max_length=40), None, prompts)
    with pytest.raises(UserError, match="9 shots: there are 8 examples"):
        prompting.evaluate(task, None, prompts, 9)


@pytest.mark.full
def test_a_real_model_takes_the_likeliest_choice(opened):
    task, params = opened
    apply = jitted(task.model.apply)
    texts, labels = ["the king sings to the", "a dog", ""], ["dog", "king and", "number 7"]
    likeliest = prompting.classify(
        task, params, texts, labels, "{input} {output}", normalize="none"
    )

    def log_prob(text, label):
        start = [] if text else [task.tokenizer.eos_id]
        text_ids, ids = task.tokenizer.encode([text, f"{text} {label}"])
        ids = start + ids
        # The padding behind the text is not seen, and one shape is compiled.
        logits = apply({"params": params}, np.array([ids[:-1] + [0] * (33 - len(ids))]))
        log_p = scipy.special.log_softmax(logits, axis=-1)[0]
        return sum(float(log_p[i - 1, ids[i]]) for i in range(len(start + text_ids), len(ids)))

    scores = [[log_prob(text, label) for label in labels] for text in texts]
    assert likeliest == [labels[row.index(max(row))] for row in scores]
    items = [Item("the king", "sings"), Item("the", "dog")]
    results = prompting.evaluate(task, params, Prompts(items, template="{input} {output}"))
    assert results["items"] == 2 and 0 <= results["accuracy"] <= 1


@pytest.mark.full
def test_a_token_across_the_border_belongs_to_the_continuation(opened):
    task, params = opened

    def pieces(text):
        return task.tokenizer.pieces(task.tokenizer.encode([text])[0])

    assert pieces("the king")[-1] == "▁king" and len(pieces("the ki")) >= 2
    across, at_space = task.log_likelihoods(params, [("the ki", "ng"), ("the", " king")])
    assert across == at_space and across.tokens == 1


def test_the_command_prints_every_setting(workdir, file):
    path = file(examples=FRENCH["examples"][:2])
    done = call(
        "evaluate", f"--workdir={workdir}", "--step=latest", f"--prompts={path}", "--shots=0,1,2"
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["prompts"] == path and printed["results"][0]["accuracy"] == 0
    assert [result["shots"] for result in printed["results"]] == [0, 1, 2]
    refused(
        call("evaluate", f"--workdir={workdir}", f"--prompts={path}", "--shots=3"),
        "--shots=3",
        "has 2 examples",
    )
    refused(call("evaluate", f"--workdir={workdir}", "--shots=3"), "--shots needs --prompts")
