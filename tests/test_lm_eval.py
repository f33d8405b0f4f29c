"""The adapter to lm-evaluation-harness: its arithmetic here, the harness's own tasks on local files
where the extra `lm_eval` is installed.
"""

import itertools
import json
import math
import types

import numpy as np
import pytest
import scipy.special

from tests.jitted import jitted
from tests.programs import call, refused
from tests.test_prompting import gpt_run
from transformer_jax import lm_eval_adapter
from transformer_jax.inference.log_probabilities import LeftToRight
from transformer_jax.lm_eval_adapter import WorkdirLM, last_tokens

TASKS = {  # the harness's three kinds of requests
    "choices": (
        {
            "output_type": "multiple_choice",
            "doc_to_text": "{{text}}",
            "doc_to_choice": ["dog", "number"],
            "doc_to_target": "{{label}}",
        },
        [
            {"text": "the king sings to a", "label": "dog"},
            {"text": "and the", "label": "dog"},
            {"text": "the king", "label": "number"},
        ],
    ),
    "writing": (
        {
            "output_type": "generate_until",
            "doc_to_text": "{{text}}",
            "doc_to_target": "{{label}}",
            "metric_list": [{"metric": "exact_match"}],
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8},
        },
        [
            {"text": "and the dog sings", "label": "to the king"},
            {"text": "the " * 100, "label": "x"},
        ],
    ),
    "reading": (
        {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "bits_per_byte"}],
        },
        [{"text": "the king sings to a dog"}, {"text": "and the dog sings to the king " * 20}],
    ),
}


def asked(*args):
    return types.SimpleNamespace(args=args)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return gpt_run(tmp_path_factory.mktemp("gpt"))


@pytest.fixture(scope="module")
def model(workdir):
    return WorkdirLM(workdir, "latest", batch_size=1, device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    for name, (settings, documents) in TASKS.items():
        data, path = folder / f"{name}.jsonl", folder / f"{name}.yaml"
        data.write_text("".join(json.dumps(document) + "\n" for document in documents))
        path.write_text(
            json.dumps(
                {  # JSON is YAML
                    "task": f"tiny_{name}",
                    "dataset_path": "json",
                    "dataset_kwargs": {"data_files": {"test": str(data)}},
                    "test_split": "test",
                    **settings,
                }
            )
        )
    return folder


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 8, 10])
def test_rolling_windows_predict_each_token_once(size):
    scoring = LeftToRight(types.SimpleNamespace(window=4), tokenizer=None)
    windows, ids = [], list(range(size))
    for index in range(scoring.num_queries(ids)):
        query = scoring.query([99], ids, index)
        read = query.row["tokens"]
        windows.append((read[: query.positions[0] + 1], list(query.labels)))
        assert [*read, query.labels[-1]] == [*windows[-1][0], *query.labels]
    assert list(itertools.chain.from_iterable(continuation for _, continuation in windows)) == list(
        range(size)
    )
    text = [99, *range(size)]
    for context, continuation in windows:
        end = text.index(continuation[-1]) + 1
        # what stands before, as much as the model takes
        assert context + continuation == text[max(end - 5, 0) : end]
    if lm_eval_adapter.lm_eval:
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        assert windows == list(
            map(make_disjoint_window, get_rolling_token_windows(list(range(size)), 99, 4, 1))
        )


@pytest.mark.full
def test_the_end_of_a_context(model):
    tokenizer = model.task.tokenizer
    text = "the king sings – to a dög" * 3
    for count in range(1, 30):
        end = last_tokens(text, count, tokenizer)
        assert text.endswith(end) and len(tokenizer.encode([end])[0]) <= count
    assert last_tokens("the dog", 30, tokenizer) == "the dog"


def test_a_long_text_is_read_in_windows(model):
    """As sums over the model's own logits, by hand."""
    texts = ["", "the king sings to a dog", "and the dog sings – to the king " * 20]
    apply = jitted(model.task.model.apply)

    def log_prob(text):
        ids, total = [model.task.tokenizer.eos_id] + model.task.tokenizer.encode([text])[0], 0.0
        for start in range(1, len(ids), 64):
            end = min(start + 64, len(ids))
            first = max(end - 65, 0)
            logits = apply({"params": model.params}, np.array([ids[first : end - 1]]))
            log_p = scipy.special.log_softmax(logits, axis=-1)[0]
            total += sum(float(log_p[i - first - 1, ids[i]]) for i in range(start, end))
        return total

    assert model.loglikelihood_rolling([asked(text) for text in texts]) == pytest.approx(
        [log_prob(text) for text in texts], rel=1e-4
    )


def test_likelihoods_and_completions_in_order(model, capsys):
    (whole, _), (first, _), (second, _) = model.loglikelihood(
        [asked("", "the king sings"), asked("", "the"), asked("", "the king")]
    )
    assert whole < second < first < 0
    settings = {"until": ["\n"], "max_gen_toks": 6, "do_sample": False, "temperature": 0.7}
    requests = [
        asked("the king", settings),
        asked("a dog", {**settings, "max_gen_toks": 3}),
        asked("the " * 100, settings),
    ]
    together, alone = (
        model.generate_until(requests),
        [model.generate_until([request])[0] for request in requests],
    )
    assert together == alone and all(
        isinstance(text, str) and "\n" not in text for text in together
    )
    model.generate_until([asked("a dog", {"until": "\n", "max_gen_toks": 999, "num_beams": 4})])
    said = capsys.readouterr().err
    assert "completions end after 32 tokens" in said and "ignored: num_beams" in said


def test_the_harness_runs_its_tasks(workdir, folder, model):
    pytest.importorskip("lm_eval")
    tasks = f"--tasks=tiny_choices,{folder / 'writing.yaml'},tiny_reading"
    done = call(
        "lm_eval_adapter",
        f"--workdir={workdir}",
        "--step=latest",
        f"--include_path={folder}",
        tasks,
        HF_HUB_OFFLINE="1",
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results["n-samples"]["tiny_choices"]["effective"] == 3 and set(results["results"]) == {
        "tiny_choices",
        "tiny_writing",
        "tiny_reading",
    }
    asks = [
        asked(document["text"], f" {choice}")
        for document in TASKS["choices"][1]
        for choice in ("dog", "number")
    ]
    scores = [score for score, _ in model.loglikelihood(asks)]
    right = [
        ("dog", "number")[scores[2 * i] < scores[2 * i + 1]] == document["label"]
        for i, document in enumerate(TASKS["choices"][1])
    ]
    assert results["results"]["tiny_choices"]["acc,none"] == pytest.approx(sum(right) / 3)
    texts = [document["text"] for document in TASKS["reading"][1]]
    bits = (
        -sum(model.loglikelihood_rolling([asked(text) for text in texts]))
        / sum(map(len, texts))
        / math.log(2)
    )
    assert results["results"]["tiny_reading"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-4)
    assert 0 <= results["results"]["tiny_writing"]["exact_match,none"] <= 1
    refused(
        call("lm_eval_adapter", f"--workdir={workdir}", "--tasks=no_such_task"),
        "no task 'no_such_task'",
    )


def test_the_harness_knows_the_model_by_name(workdir):
    registry = pytest.importorskip("lm_eval.api.registry")
    made = registry.get_model("transformer_jax").create_from_arg_string(
        f"workdir={workdir},step=latest", {"batch_size": 1, "device": None}
    )
    assert isinstance(made, WorkdirLM)


def test_without_the_extra_it_says_what_to_install(workdir):
    if lm_eval_adapter.lm_eval:
        pytest.skip("lm_eval is installed")
    refused(
        call("lm_eval_adapter", f"--workdir={workdir}", "--tasks=piqa"),
        "pip install -e '.[lm_eval]'",
    )
