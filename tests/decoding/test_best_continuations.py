"""Beam search with causal models: against all texts, transformers, greedy search and a mesh."""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from tests.fixtures import make_huggingface_beams as make
from tests.fixtures.make_huggingface import HERE, PROMPT
from tests.fixtures.make_huggingface_decoder import QWEN2
from transformer_jax import convert
from transformer_jax.config import Decode, UserError
from transformer_jax.distributed.sharding import Placement
from transformer_jax.families.decoder import Decoder
from transformer_jax.families.gpt import GPT
from transformer_jax.families.recurrent import RecurrentLM
from transformer_jax.huggingface import encoder_decoder
from transformer_jax.inference.beam_search import BeamSearch, BestContinuations, length_penalty
from transformer_jax.runs import open as opening

SIZES = dict(vocab_size=5, d_model=8, num_layers=1)
MODELS = {
    "gpt": GPT(**SIZES, num_heads=2, max_length=8),
    "decoder": Decoder(**SIZES, num_heads=2, num_kv_heads=1, d_ff=12, max_length=8),
    "lstm": RecurrentLM(**SIZES),
}
MESH = ConfigDict({"rules": (), "pipeline": 1})
PROMPTS, LIMIT, END = ["24", "3", "04233"], 3, 1


class Digits:
    """A digit is a token; 0 is a token as any other, and 1 the end."""

    eos_id = END

    def encode(self, texts):
        return [list(map(int, text)) for text in texts]

    def decode(self, rows):
        return ["".join(map(str, ids)) for ids in rows]


def all_outputs():
    """Returns all outputs of up to LIMIT tokens, those that are shorter with their end."""
    texts = itertools.product(range(5), repeat=LIMIT)
    return {ids[: ids.index(END) + 1] if END in ids else ids for ids in texts}


@pytest.mark.sample("lstm")
@pytest.mark.parametrize("family", MODELS)
def test_they_are_the_best_of_all_texts(family):
    """With as many beams as prefixes. The second batch of two has one prompt."""
    model = MODELS[family]
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 2), int)))
    generator = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: generator.normal(0.5, 0.6, x.shape).astype(np.float32), shapes["params"]
    )
    search = BeamSearch(beam=16, alpha=0.6, eos_id=END, n_best=5, continues=True)
    find = BestContinuations(model, Digits(), list, 2, Placement.of(params, MESH))
    outputs = sorted(all_outputs())
    texts = np.array([ids + (0,) * (LIMIT - len(ids)) for ids in outputs])
    lengths = np.array(list(map(len, outputs)))
    forward = jax.jit(lambda tokens: jax.nn.log_softmax(model.apply({"params": params}, tokens)))
    for prompt, best in zip(PROMPTS, find(params, PROMPTS, search, LIMIT), strict=True):
        ids = Digits().encode([prompt])[0]
        begin = len(ids)
        rows = np.zeros((len(texts), 8), np.int32)
        rows[:, :begin], rows[:, begin : begin + LIMIT] = ids, texts
        log_probs = np.asarray(forward(rows))[:, begin - 1 : begin - 1 + LIMIT]
        log_probs = np.take_along_axis(log_probs, texts[..., None], axis=2)[..., 0]
        sums = np.where(np.arange(LIMIT) < lengths[:, None], log_probs, 0).sum(axis=1)
        scores = sums / np.asarray(length_penalty(jnp.asarray(lengths), 0.6))
        order = np.argsort(-scores)[:5]
        np.testing.assert_allclose([each.score for each in best], scores[order], rtol=1e-4)
        for each, ids in zip(best, [outputs[row] for row in order]):
            ended = ids[-1] == END
            assert each.text == "".join(map(str, ids[:-1] if ended else ids))
            assert (each.finished == "end") == ended and each.tokens == len(each.text)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    run = tmp_path_factory.mktemp("best") / "run"
    convert.from_hf(make.FOLDER, run)
    return run


@pytest.fixture(scope="module")
def opened(converted):
    return opening.open_run(converted, overrides={"decode.alpha": 0.0})


@pytest.mark.sample("ends-exact-2", "no repeats-estimate-3")
@pytest.mark.sample("ends-exact-2", "ends-estimate-3", "no repeats-estimate-3")
@pytest.mark.parametrize(
    "case, early_stopping, equal",
    # transformers drops ends beyond the likeliest K candidates, so its third text may be worse.
    [
        ("no end", "exact", 3),
        ("ends", "exact", 2),
        ("ends", "estimate", 3),
        ("no repeats", "estimate", 3),
    ],
)
def test_they_equal_those_of_transformers(opened, case, early_stopping, equal):
    task, params = opened
    options = make.CASES[case]
    keys = encoder_decoder.decode_keys(options) | dict(
        beam=make.BEAM, early_stopping=early_stopping
    )
    end = options["eos_token_id"]
    search = BeamSearch.of(Decode(**keys), end, make.N_BEST, continues=True)
    tokenizer = task.tokenizer

    class Tokenizer:
        eos_id = end

        def encode(self, texts):
            return tokenizer.encode(texts)

        def decode(self, rows):
            return [" ".join(map(str, ids)) + " " for ids in rows]

    placement = Placement.of(params, task.config.mesh)
    find = BestContinuations(task.model, Tokenizer(), task.with_start, 4, placement)
    expected = np.load(make.FOLDER / "beams.npz")
    for number, best in enumerate(find(params, make.PROMPTS, search, make.MAX_TOKENS)):
        scores = [each.score for each in best]
        np.testing.assert_allclose(
            scores[:equal], expected[f"scores-{case}-{number}"][:equal], rtol=1e-5
        )
        for each, ids in zip(best[:equal], expected[f"ids-{case}-{number}"]):
            assert each.text.split() == [str(one) for one in ids[: each.tokens]]
            assert (each.finished == "end") == (end in ids)


@pytest.mark.full
def test_one_beam_is_greedy_search(opened):
    task, params = opened
    prompts, limit = [PROMPT, "a"], dict(max_tokens=12)
    greedy = [text[:3] for text in task.generate(params, prompts, temperature=0.0, **limit)]
    best = [best for (best,) in task.generate_beam(params, prompts, beam=1, **limit)]
    assert [each[:3] for each in best] == greedy


@pytest.mark.full
def test_a_mesh_changes_nothing(tmp_path, monkeypatch):
    convert.from_hf(HERE / QWEN2, tmp_path / "run")
    prompts, options = make.PROMPTS[:3], dict(beam=3, n_best=2, max_tokens=8)
    task, params = opening.open_run(tmp_path / "run")
    one = itertools.chain(*task.generate_beam(params, prompts, **options))
    monkeypatch.setattr(opening, "local_devices", jax.local_devices)
    mesh = {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2}
    task, params = opening.open_run(tmp_path / "run", overrides=mesh)
    assert len(jax.tree.leaves(params)[0].sharding.device_set) == 8
    many = itertools.chain(*task.generate_beam(params, prompts, **options))
    for first, second in zip(one, many, strict=True):
        assert first[:3] == second[:3]
        assert first.score == pytest.approx(second.score, rel=1e-5)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(beam=0), "beam=0: must be a whole number of at least 1"),
        (dict(beam=2, n_best=3), "n_best=3: must be at most beam=2"),
        (dict(beam=2.0), "beam=2.0: must be a whole number"),
        (dict(beam=2, max_tokens=0), "max_tokens=0: must be at least 1"),
        (
            dict(beam=2, max_tokens=48),
            "prompt 1: its .* tokens and 48 more exceed config.model.max",
        ),
    ],
)
def test_wrong_numbers_are_refused(opened, options, message):
    task, params = opened
    with pytest.raises(UserError, match=message):
        list(task.generate_beam(params, [PROMPT], **options))
