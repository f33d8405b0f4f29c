"""Log-probabilities of texts by each kind of model: sums, neighbors in a batch, long texts."""

import dataclasses
import itertools
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax.sharding import NamedSharding, PartitionSpec

from tests.jitted import jitted
from transformer_jax import config as configs
from transformer_jax.config import UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.data.tokenizers.tokenizer import Tokenizer
from transformer_jax.distributed.sharding import Placement, make_mesh
from transformer_jax.families.bart import BART
from transformer_jax.families.bert import BERT
from transformer_jax.families.electra import ELECTRA
from transformer_jax.families.elmo import ELMo
from transformer_jax.families.encoder_decoder import EncoderDecoder
from transformer_jax.families.gpt import GPT
from transformer_jax.families.recurrent import RecurrentLM
from transformer_jax.families.recurrent_seq2seq import RecurrentSeq2Seq
from transformer_jax.families.t5 import T5
from transformer_jax.families.transformer_xl import TransformerXL
from transformer_jax.families.xlnet import XLNet
from transformer_jax.inference.log_probabilities import (
    BlankSource,
    Discriminator,
    Forward,
    LeftToRight,
    Masked,
    Permuted,
    Scorer,
    Unified,
)

V = 9
WIDTHS = dict(vocab_size=V, d_model=8, d_ff=12, num_heads=2, dropout=0.0)
SMALL = WIDTHS | dict(num_layers=2)
PAIR = WIDTHS | dict(num_encoder_layers=1, num_decoder_layers=2)
ENCODER = {key: value for key, value in SMALL.items() if key != "d_ff"}


class Letters(Tokenizer):
    """Ids 0 to 4 are special, and then come the letters. "b" and "c" continue a word."""

    file, vocab_size = "letters", V
    eos_id, pad_id, cls_id, sep_id, mask_id = range(5)

    def _encode(self, texts):
        return [["abcd".index(letter) + 5 for letter in text] for text in texts]

    def pieces(self, ids):
        return [(*"ep[]m", "▁a", "b", "c", "▁d")[i] for i in ids]

    def spelled(self, size):
        table = np.random.default_rng(0).integers(1, 262, (V, size))
        return types.SimpleNamespace(table=table)


TOKENIZER = Letters(b"")


class Paired:
    """Two tokenizers, hashable as those of a run are."""

    source = target = TOKENIZER


def left_to_right(model, **options):
    # The start of a document is read in front of a context, too.
    return LeftToRight(model, TOKENIZER, mask_documents=True, **options)


SCORINGS = {
    "gpt": left_to_right(GPT(**ENCODER, max_length=16, attention_dropout=0.0)),
    "lstm": left_to_right(RecurrentLM(vocab_size=V, d_model=8)),
    "transformer_xl": left_to_right(TransformerXL(**SMALL, memory_length=4), segment=4),
    "xlnet": Permuted(XLNet(**SMALL, memory_length=0), TOKENIZER),
    "unilm": Unified(BERT(**ENCODER, attention_dropout=0.0, max_length=32), TOKENIZER),
    "unilm_target": Unified(
        BERT(**ENCODER, attention_dropout=0.0, max_length=32), TOKENIZER, "sequence_to_sequence"
    ),
    "transformer": BlankSource(EncoderDecoder(**PAIR, max_length=32), Paired()),
    "recurrent_seq2seq": BlankSource(RecurrentSeq2Seq(vocab_size=V, d_model=8), Paired()),
    "bart": BlankSource(BART(**PAIR, max_length=32), Paired(), blank=(4,)),
    "t5": BlankSource(T5(**PAIR, head_dim=4), Paired(), blank=(8,), lead=(8,)),
    "elmo": Forward(
        ELMo(
            vocab_size=V,
            d_model=8,
            lstm_width=6,
            max_characters=10,
            filters=((1, 4), (3, 5)),
            dropout=0.0,
        ),
        TOKENIZER,
    ),
    "bert": Masked(BERT(**ENCODER, attention_dropout=0.0, max_length=32), TOKENIZER),
    "electra": Discriminator(
        ELECTRA(**ENCODER, attention_dropout=0.0, max_length=32, generator_size=0.0), TOKENIZER
    ),
}
EXACT = [name for name, scoring in SCORINGS.items() if scoring.kind == "exact"]


def used(model, tokens):
    """Reads the parameters that scores need, of a model whose `__call__` does not."""
    if isinstance(model, XLNet):
        return model.logits(model.permuted(Inputs(tokens, ranks=tokens), tokens[:, :1])[0])
    return model.detected(model.hidden(Inputs(tokens)))


def initialized(model):
    tokens = jnp.zeros((1, 8), jnp.int32)
    if isinstance(model, ELMo):
        return model.init(jax.random.key(0), jnp.zeros((1, 2, 2, 10), jnp.int32))
    if isinstance(model, XLNet | ELECTRA):
        return model.init(jax.random.key(0), tokens, method=used)
    inputs = (tokens,) * (1 + (model.kind == "sequence_to_sequence"))
    return model.init(jax.random.key(0), *inputs)


@pytest.fixture(scope="module")
def params():
    """Returns a function of a scoring: parameters far from their small initial values."""

    def random_params(scoring):
        shapes = nn.unbox(jax.eval_shape(lambda: initialized(scoring.model)))["params"]
        random = np.random.default_rng(0)
        return jax.tree.map(lambda x: random.normal(0, 0.4, x.shape).astype(np.float32), shapes)

    return random_params


def scores(scoring, params, texts, context=(), batch=64):
    """Returns the log-probabilities of the tokens of each text of ids."""
    mesh = types.SimpleNamespace(pipeline=1, data=1, fsdp=1, tensor=1, sequence=1, rules=())
    scorer = Scorer(scoring, batch, Placement.of(params, mesh))
    pairs = [(scoring.started(list(context)), list(text)) for text in texts]
    names = [f"text {number}" for number in range(len(pairs))]
    return [log_probs for log_probs, _ in scorer(params, pairs, names)]


@pytest.mark.parametrize("name", EXACT)
def test_the_probabilities_of_all_texts_of_two_tokens_sum_to_one(name, params):
    scoring = SCORINGS[name]
    texts = list(itertools.product(range(V), repeat=2))
    found = scores(scoring, params(scoring), texts)
    assert np.exp([log_probs.sum() for log_probs in found]).sum() == pytest.approx(1, abs=1e-5)
    # So do those of the continuations of a text.
    after = scores(scoring, params(scoring), [(i,) for i in range(V)], context=(5, 6, 7))
    assert np.exp(np.concatenate(after)).sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.sample("lstm", "xlnet", "unilm", "bart", "bert", "electra")
@pytest.mark.parametrize("name", SCORINGS)
def test_a_score_does_not_depend_on_its_neighbors(name, params):
    scoring, random = SCORINGS[name], np.random.default_rng(1)
    texts = [random.integers(0, V, length).tolist() for length in (3, 12, 0, 1, 12, 7)]
    together = scores(scoring, params(scoring), texts)
    assert [len(each) for each in together] == list(map(len, texts))
    for text, log_probs in zip(texts, together):
        alone = scores(scoring, params(scoring), [text], batch=1)[0]
        np.testing.assert_allclose(alone, log_probs, atol=1e-5)


@pytest.mark.sample("gpt", "t5")
@pytest.mark.parametrize("name", EXACT)
def test_a_text_is_as_probable_as_its_parts(name, params):
    scoring, text = SCORINGS[name], [5, 6, 7, 8, 5, 5]
    (whole,) = scores(scoring, params(scoring), [text])
    (end,) = scores(scoring, params(scoring), [text[4:]], context=text[:4])
    np.testing.assert_allclose(whole[4:], end, atol=1e-5)


def test_a_long_text_is_read_in_windows(params):
    """Each token is predicted once, and in the last window from as many tokens as fit."""
    scoring = SCORINGS["gpt"]
    text = np.random.default_rng(2).integers(0, V, 37).tolist()
    window, variables = scoring.model.max_length, params(scoring)
    (found,) = scores(scoring, variables, [text])
    assert len(found) == 37 and (found < 0).all()
    np.testing.assert_allclose(scores(scoring, variables, [text[:16]])[0], found[:16], atol=1e-5)
    apply = jitted(scoring.model.apply)
    logits = apply({"params": variables}, np.array([text[-window - 1 : -1]]))[0]
    log_probs = scipy.special.log_softmax(np.asarray(logits), axis=-1)
    by_hand = [log_probs[i, text[-window + i]] for i in range(window)]
    np.testing.assert_allclose(found[-5:], by_hand[-5:], atol=1e-4)


@pytest.mark.parametrize("name", ["lstm", "transformer_xl"])
def test_a_state_is_carried_over_the_segments_of_a_text(name, params):
    scoring = SCORINGS[name]
    text = np.random.default_rng(3).integers(0, V, 12).tolist()
    (found,) = scores(left_to_right(scoring.model, segment=4), params(scoring), [text])
    carry, states = scoring.model.initial_carry(1), []
    apply = jitted(scoring.model.apply)
    variables = {"params": params(scoring)}
    read = np.array([[0, *text[:-1]]])
    for start in range(0, 12, 4):
        hidden, carry = apply(variables, read[:, start : start + 4], carry, method="advance")
        states.append(hidden)
    logits = apply(variables, np.concatenate(states, axis=1), method="logits")[0]
    by_hand = scipy.special.log_softmax(np.asarray(logits), axis=-1)[np.arange(12), text]
    np.testing.assert_allclose(found, by_hand, atol=1e-4)


def test_a_pseudo_log_likelihood_masks_one_token_at_a_time(params):
    scoring, text = SCORINGS["bert"], [5, 6, 7, 8]  # the words "abc" and "d"
    variables = {"params": params(scoring)}
    apply = jitted(scoring.model.apply)

    def by_hand(masked):
        """Returns the log-probabilities of the tokens. `masked` are indices, by token."""
        rows = np.array([[2, *text, 3]] * 4)
        for row, indices in zip(rows, masked):
            row[1 + np.array(indices)] = 4
        states = apply(variables, rows, method="hidden")
        logits = np.asarray(apply(variables, states, method="logits"))
        return [scipy.special.log_softmax(logits[i, 1 + i])[token] for i, token in enumerate(text)]

    (found,) = scores(scoring, params(scoring), [text])
    np.testing.assert_allclose(found, by_hand([[0], [1], [2], [3]]), atol=1e-4)
    within = Masked(scoring.model, TOKENIZER, within_word=True)
    (found,) = scores(within, params(scoring), [text])
    np.testing.assert_allclose(found, by_hand([[0, 1, 2], [1, 2], [2], [3]]), atol=1e-4)


def test_a_discriminator_says_whether_tokens_are_original(params):
    scoring, text = SCORINGS["electra"], [5, 6, 7]
    variables = {"params": params(scoring)}
    apply = jitted(scoring.model.apply)
    states = apply(variables, np.array([[2, *text, 3]]), method="hidden")
    logits = np.asarray(apply(variables, states, method="detected"))[0, 1:4]
    (found,) = scores(scoring, params(scoring), [text])
    np.testing.assert_allclose(found, np.log(1 - scipy.special.expit(logits)), atol=1e-4)


@pytest.mark.sample("bert")
@pytest.mark.parametrize("name", ["bert", "unilm", "transformer"])
def test_rows_are_not_padded_beyond_the_window(name, params):
    """A text that fits is scored where no multiple of 8 is the window."""
    scoring = SCORINGS[name]
    model = scoring.model.clone(max_length=21)
    shorter = dataclasses.replace(scoring, model=model)
    text = [5] * 17
    (found,) = scores(shorter, params(shorter), [text])
    assert len(found) == 17 and np.isfinite(found).all()


def test_scores_are_equal_on_a_mesh(params):
    scoring = SCORINGS["bert"]
    texts = [[5, 6, 7], [8], [5, 5, 6, 8, 7]]
    config = configs.experiment(
        model={"name": "gpt"}, task={"name": "causal_lm"}, mesh={"data": 2, "tensor": 2}
    ).mesh
    mesh = make_mesh(config, jax.devices()[:4])
    variables = jax.device_put(params(scoring), NamedSharding(mesh, PartitionSpec()))
    scorer = Scorer(scoring, 4, Placement.of(variables, config))
    found = scorer(variables, [([], text) for text in texts], ["text"] * 3)
    for alone, (log_probs, _) in zip(scores(scoring, params(scoring), texts), found, strict=True):
        np.testing.assert_allclose(log_probs, alone, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "unilm", "bart", "electra"])
def test_a_text_that_is_too_long_is_refused(name, params):
    with pytest.raises(UserError, match="text 1: it has 4. tokens, .* config.model.max_length=32"):
        scores(SCORINGS[name], params(SCORINGS[name]), [[5], [5] * 40])
