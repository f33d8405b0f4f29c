"""The start token that a converted tokenizer adds is read once: in prompts, scores and chats."""

import json
import os
import types

import numpy as np
import pytest
import scipy.special

from tests.conversion.checkpoints import GPT2 as GPT2_NAME
from tests.conversion.checkpoints import copied, logits, read_json
from tests.fixtures.make_huggingface import HERE
from transformer_jax import convert
from transformer_jax.data import tokenizers
from transformer_jax.lm_eval_adapter import WorkdirLM
from transformer_jax.runs.open import open_run

LLAMA = "LlamaForCausalLM"
START = 300  # <s> in Llama's tokenizer
END = 301  # </s>
TEXT = [280, 263, 276]  # "the cat"


def template(*parts):
    """Returns a TemplateProcessing, as in tokenizer.json; None stands for the text."""
    ids = {"<s>": START, "</s>": END}

    def written(name):
        if name is None:
            return {"Sequence": {"id": "A", "type_id": 0}}
        return {"SpecialToken": {"id": name, "type_id": 0}}

    return {
        "type": "TemplateProcessing",
        "single": [written(name) for name in parts],
        "pair": [*map(written, parts), {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in parts if name
        },
    }


OFFSETS = {
    "type": "ByteLevel",
    "add_prefix_space": True,
    "trim_offsets": False,
    "use_regex": True,
}
# {case: (post-processor, the ids in front of a text)}, as transformers 5.24 reads them.
PROCESSORS = {
    "template": (template("<s>", None), (START,)),
    "Llama 3": (
        {"type": "Sequence", "processors": [OFFSETS, template("<s>", None)]},
        (START,),
    ),
    "both ends": (template("<s>", None, "</s>"), (START,)),
    "twice": (template("<s>", "<s>", None), (START, START)),
    "RoBERTa": (
        {
            "type": "RobertaProcessing",
            "sep": ["</s>", END],
            "cls": ["<s>", START],
            "trim_offsets": True,
            "add_prefix_space": False,
        },
        (START,),
    ),
    "end only": (template(None, "</s>"), ()),
    "offsets only": (OFFSETS, ()),
    "none": (None, ()),
}


def llama(folder, processor, **settings):
    """Returns Llama's checkpoint with this post-processor of its tokenizer."""
    copied(LLAMA, folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(read_json(path) | {"post_processor": processor}))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(read_json(path) | settings))
    return folder


def gpt2(folder, **settings):
    copied(GPT2_NAME, folder)
    settings = {"tokenizer_class": "GPT2Tokenizer", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("case", PROCESSORS)
def test_what_a_tokenizer_adds(case, tmp_path):
    processor, start = PROCESSORS[case]
    # As transformers 5 does, tokenizer.json takes precedence over this key.
    folder = llama(tmp_path / "hf", processor, add_bos_token=not start)
    before, after = tokenizers.published_frame(folder, tokenizers.read_published(folder))
    assert before == start
    assert after == ((END,) if case in ("both ends", "end only", "RoBERTa") else ())


@pytest.mark.parametrize(
    "settings, start",
    [
        ({"add_bos_token": True}, (266,)),  # GPT-2's default is <|endoftext|>
        ({"add_bos_token": True, "bos_token": {"content": "a"}}, (64,)),
        ({"add_bos_token": False}, ()),
        ({}, ()),
        ({"add_bos_token": True, "bos_token": "<missing>"}, ()),
    ],
)
def test_a_tokenizer_without_tokenizer_json(settings, start, tmp_path):
    folder = gpt2(tmp_path / "hf", **settings)
    tokenizer = tokenizers.read_published(folder)
    assert tokenizers.published_frame(folder, tokenizer) == (start, ())


@pytest.mark.parametrize("case", ["template", "both ends", "Llama 3", "twice"])
def test_live(case, tmp_path):
    transformers = pytest.importorskip("transformers")
    processor, start = PROCESSORS[case]
    tokenizer = transformers.AutoTokenizer.from_pretrained(llama(tmp_path / "hf", processor))
    assert tuple(tokenizer("the cat").input_ids[: len(start) + 3]) == (*start, *TEXT)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    convert.from_hf(llama(folder / "hf", template("<s>", None)), folder / "run")
    return folder / "run"


def test_prompts_and_scores(run):
    task, params = open_run(run)
    assert task.with_start(task.tokenizer.encode("the cat")) == [START, *TEXT]
    assert task.with_start([]) == [START]
    # No text encodes to the special token, so it can't be there twice.
    assert START not in task.tokenizer.encode("<s>the cat")
    context, whole = task.log_likelihoods(params, [("the", " cat"), ("", "the cat")])
    # The values of transformers 5.24, and sums over the model's logits.
    log_p = scipy.special.log_softmax(logits(run, [[START, *TEXT]])[0], axis=-1)
    steps = [log_p[i, token] for i, token in enumerate(TEXT)]
    # The token at which "the cat" and "the" begin to differ belongs to the continuation.
    border = len(os.path.commonprefix([TEXT, task.tokenizer.encode("the")]))
    assert context.log_prob == pytest.approx(-23.478, abs=1e-3)
    assert context.log_prob == pytest.approx(sum(steps[border:]), abs=1e-3)
    assert whole.log_prob == pytest.approx(sum(steps), abs=1e-3)
    model = WorkdirLM(run)
    request = types.SimpleNamespace(args=("the cat",))
    assert model.loglikelihood_rolling([request]) == pytest.approx([whole.log_prob], abs=1e-3)
    (greedy,) = task.generate(params, ["the cat"], max_tokens=4, temperature=0.0)
    ids = [START, *TEXT]
    for _ in range(4):
        ids.append(int(np.argmax(logits(run, [ids])[0, -1])))
    start, text = task.tokenizer.decode([[START, *TEXT], ids])
    assert greedy.text == text[len(start) :]


def test_runs_and_files_keep_it(run, tmp_path):
    task, _ = open_run(run)
    convert.to_hf(run, tmp_path / "back")
    library = read_json(tmp_path / "back" / "tokenizer.json")
    assert library["post_processor"] == template("<s>", None)
    # A run that an earlier version converted has no such file, and reads prompts as it did.
    files = task.tokenizer.files()
    assert json.loads(files.pop(tokenizers.tokenizer.PREFIX_FILE)) == {"prefix": [START]}
    earlier = tokenizers.training.from_files(files)
    assert earlier.prefix == () and earlier.fingerprint() != task.tokenizer.fingerprint()
    folder = gpt2(tmp_path / "gpt2", add_bos_token=True)
    tokenizer = tokenizers.read_published(folder)
    tokenizer.prefix = (266,)
    written = json.loads(tokenizer.hf_files()["tokenizer_config.json"])
    assert written["add_bos_token"] and written["bos_token"] == "<|endoftext|>"


def test_a_conversation_begins_with_it_once(run):
    task, _ = open_run(run)
    plain = tokenizers.read_published(HERE / LLAMA)
    messages = [{"role": "user", "content": "the cat"}]
    special_tokens = tokenizers.ChatTokenizer(plain).special_tokens
    chat, other = (
        tokenizers.with_special_tokens(each, special_tokens) for each in (task.tokenizer, plain)
    )
    assert chat.prompt(messages) == [START, *other.prompt(messages)]
    assert chat.prompt([*messages, {"role": "assistant", "content": "a"}] * 2).count(START) == 1
    assert not chat.render([*messages, {"role": "assistant", "content": "a"}]).is_completion[0]
    again = tokenizers.training.from_files(chat.files())
    assert again.prompt(messages) == chat.prompt(messages)
    assert again.for_replies.prefix == (START,)
    # A run on conversations of an earlier version was trained without it.
    files = chat.files() | {"chat.json": json.dumps({"marks": special_tokens}).encode()}
    assert tokenizers.training.from_files(files).prompt(messages) == other.prompt(messages)
    template = json.loads(chat.hf_files()["tokenizer_config.json"])["chat_template"]
    assert template.startswith('{{ "<s>" }}')
    assert not json.loads(other.hf_files()["tokenizer_config.json"])["chat_template"].startswith(
        "{{"
    )
