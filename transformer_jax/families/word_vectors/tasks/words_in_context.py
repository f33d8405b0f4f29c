"""Word prediction from context with negative sampling, context2vec (Melamud et al. 2016)."""

import dataclasses
from functools import cached_property

import jax
import jax.numpy as jnp

from transformer_jax.config import PositiveInt, UserError, build_model
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data import tokenizers
from transformer_jax.families.word_vectors.word_contexts import Sentences
from transformer_jax.families.word_vectors.words import WordTask, negative_sampling
from transformer_jax.objectives.texts import check_row_length


@dataclasses.dataclass
class WordsInContext(WordTask):
    """Predicts each word of a sentence by negative sampling (section 2.2, equation 2).

    All words of a sentence share its noise words.

    The loss is the mean over words, where the published code has the sum over a batch.
    """

    length: int = 64  # tokens of a row, with its two special tokens; a longer sentence is cut
    negatives: PositiveInt = 10  # noise words of a word
    shared_noise: PositiveInt = 32  # noise words of a sentence

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = {"loss": 1.0}
        check_row_length("length", self.length, self.model, least=3)
        if "fill" not in self.model.can:
            raise UserError(
                f"config.model.name={self.config.model.name!r}: does not fill blanks; take a model "
                "that does, such as context2vec"
            )

    @cached_property
    def texts(self) -> Sentences:
        return Sentences(
            self.config,
            length=self.length,
            noise=self.shared_noise,
            vocab_size=self.model.vocab_size,
        )

    @cached_property
    def tokenizer(self) -> tokenizers.Tokenizer:
        tokenizer = super().tokenizer
        tokenizer.required("cls", "sep", "mask", user=type(self.model).__name__)
        return tokenizer

    def batch_spec(self, row_shape: int):
        shapes = dict.fromkeys(("tokens", "segment_ids", "weights"), (self.length,))
        return self.int32_spec(shapes | {"noise": (self.shared_noise,)})

    def init(self, rng):
        return self.model.init(rng, jnp.zeros((1, 8), jnp.int32), method=_logits)["params"]

    def weights(self, batch):
        return {"loss": batch["weights"].sum().astype(jnp.float32)}

    def loss(self, params, batch, context: Context) -> Loss:
        rngs = {"dropout": context.rng} if context.train else None
        tokens, noise = batch["tokens"], batch["noise"]
        contexts, targets, others = self.model.apply(
            {"params": params},
            tokens,
            batch["segment_ids"],
            noise,
            context.train,
            method=_contexts,
            rngs=rngs,
        )
        weights = batch["weights"].astype(jnp.float32)
        repeats = (tokens[:, :, None] == noise[:, None]).astype(jnp.float32)
        pairs = jnp.eye(self.length) * weights[:, None]  # a word is the target of its own context
        loss = negative_sampling(
            contexts, targets, others, pairs, repeats, negatives=self.negatives
        ).sum()
        count = batch["weights"].sum(dtype=jnp.int32)
        filled = (batch["segment_ids"] > 0).sum(dtype=jnp.int32)
        metrics = {"loss": (loss, count), "filled": (filled, jnp.int32(tokens.size))}
        return Loss({"loss": loss}, metrics)

    def flops(self, row_shape: int = 0) -> float:
        columns = self.length + self.shared_noise
        products = 2.0 * self.length * columns * self.model.d_model
        return 3 * (self.model.flops(self.length, 0) + products)


def _logits(model, tokens) -> jax.Array:
    return model.logits(model.hidden(Inputs(tokens)))


def _contexts(model, tokens, segment_ids, noise, train: bool):
    """Returns the contexts (B, L, M), and the output vectors of the words and the noise words."""
    inputs = Inputs(tokens, segment_ids=segment_ids)
    contexts = model.transformed(model.hidden(inputs, train=train))
    table = model.output().table
    return contexts, table[tokens], table[noise]
