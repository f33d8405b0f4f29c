"""Log-probabilities of texts beside transformers', where it and torch are installed.

The checkpoints are those of the other tests: random models of each architecture.
"""

import numpy as np
import pytest

from tests.fixtures.make_huggingface import HERE
from transformer_jax import convert
from transformer_jax.runs.open import open_run

TEXTS = ["the cat sat on the mat", "a dog", "the dog ran to the cat and sat"]


def gpt_log_probs(model, task, ids):
    rows = [[task.tokenizer.eos_id, *ids]]
    return picked(model(tensor(rows)).logits[0, :-1], ids)


def bert_log_probs(model, task, ids):
    """The diagonal of the rows that each mask one token."""
    tokenizer = task.tokenizer
    rows = np.tile([tokenizer.cls_id, *ids, tokenizer.sep_id], (len(ids), 1))
    indices = np.arange(len(ids))
    rows[indices, 1 + indices] = tokenizer.mask_id
    logits = model(tensor(rows)).logits
    return picked(logits[indices, 1 + indices], ids)


def t5_log_probs(model, task, ids):
    # The first sentinel is the last piece of the tokenizer.
    sentinel = task.tokenizer.target.vocab_size - 1
    source = [[sentinel, task.tokenizer.source.eos_id]]
    target = [[model.config.decoder_start_token_id, sentinel, *ids[:-1]]]
    logits = model(input_ids=tensor(source), decoder_input_ids=tensor(target)).logits
    return picked(logits[0, 1:], ids)


def xlnet_log_probs(model, task, ids):
    import torch

    length = 1 + len(ids)
    hidden = torch.triu(torch.ones(length, length))[None]  # 1: a token does not attend to the other
    targets = torch.eye(length)[None, 1:]
    rows = tensor([[task.tokenizer.sep_id, *ids]])
    logits = model(rows, perm_mask=hidden, target_mapping=targets).logits
    return picked(logits[0], ids)


def tensor(rows):
    import torch

    return torch.tensor(np.array(rows))


def picked(logits, ids):
    """Returns the log-probabilities of the tokens, given logits (tokens, V)."""
    return logits.log_softmax(-1)[np.arange(len(ids)), ids].detach().numpy()


@pytest.mark.parametrize(
    "folder, automatic, expected",
    [
        ("GPT2LMHeadModel", "AutoModelForCausalLM", gpt_log_probs),
        ("BertForMaskedLM", "AutoModelForMaskedLM", bert_log_probs),
        ("T5ForConditionalGeneration", "AutoModelForSeq2SeqLM", t5_log_probs),
        ("XLNetLMHeadModel", "AutoModelForCausalLM", xlnet_log_probs),
    ],
)
@pytest.mark.full
def test_scores_are_those_of_transformers(folder, automatic, expected, tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, automatic).from_pretrained(HERE / folder).eval()
    convert.from_hf(HERE / folder, tmp_path / "run")
    task, params = open_run(tmp_path / "run")
    for text, score in zip(TEXTS, task.log_probability(params, TEXTS), strict=True):
        ids = task.tokenizer.target.encode(text)
        np.testing.assert_allclose(score.log_probs, expected(model, task, ids), atol=1e-4)
