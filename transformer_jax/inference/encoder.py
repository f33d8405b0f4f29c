"""The uses of a trained encoder: filling masks and extracting hidden states."""

import abc
from collections.abc import Iterable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from transformer_jax.config import UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.data import arguments
from transformer_jax.distributed.sharding import Placement
from transformer_jax.inference import attention, batching
from transformer_jax.inference.filling import Filling, Reader
from transformer_jax.inference.log_probabilities import Masked, Scoring, TextScores
from transformer_jax.pictures.attention_maps import Attended

# ----------------------------------------------------------------------- the hidden states of texts

POOLINGS = ("mean", "max", "cls", "last")  # of `StatesUse.embed`


class StatesUse(abc.ABC):
    """The methods that tasks with an Encoder and with a SequenceToSequence model share."""

    config: ConfigDict
    model: Any
    tokenizer: Any

    @property
    @abc.abstractmethod
    def text_tokenizer(self):
        """The tokenizer of the texts that the encoder reads."""

    def features(
        self,
        params,
        texts: Iterable[str],
        layers: tuple[int, ...] = (-1,),
        *,
        long: str = "truncate",
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        """Yields the N tokens of each text, and their hidden states (layers, N, M) float32.

        Layer 0 is the embeddings, and -1 is the last layer; an encoder-decoder has only these two.
        The special tokens around the text, such as [CLS] and [SEP], are included; an empty text has
        no others. `long` decides what happens to a text longer than `config.model.max_length`:
        "truncate" cuts it, "skip" gives no tokens (N = 0), and "refuse" raises UserError. A warning
        at the end lists the numbers of these texts. Raises UserError for a layer that does not
        exist, and for layers of different widths.

        Examples:
          >>> task, params = transformer_jax.open_run("runs/bert")
          >>> [(tokens, states)] = task.features(params, ["the cat"], layers=(0, -1))
          >>> tokens, states.shape
          (['[CLS]', 'the', 'cat', '[SEP]'], (2, 4, 32))
        """
        return self._reader(params).features(params, arguments.as_texts(texts), layers, long)

    def embed(
        self,
        params,
        texts: Iterable[str],
        pooling: str = "mean",
        *,
        normalize: bool = False,
        long: str = "truncate",
    ) -> Iterator[Float[np.ndarray, " M"]]:
        """Yields a vector of each text, pooled from the hidden states of the last layer.

        The pooling "mean" or "max" is over all tokens, special ones included, as in
        sentence-transformers. "cls" is the state of [CLS], and "last" that of the last token.
        `normalize` divides each vector by its length. A text that `long="skip"` leaves out has a
        vector of zeros. Raises UserError for another pooling.

        Examples:
          >>> task, params = transformer_jax.open_run("runs/bert")
          >>> vectors = list(task.embed(params, ["the cat sat", "a dog ran"], normalize=True))
          >>> vectors[0].shape
          (32,)
        """
        if pooling not in POOLINGS:
            raise UserError(f"pooling={pooling!r}: must be one of {', '.join(POOLINGS)}")
        features = self.features(params, texts, long=long)
        return (self._vector(states, pooling, normalize) for _, (states,) in features)

    def _vector(
        self, states: Float[np.ndarray, "N M"], pooling: str, normalize: bool
    ) -> Float[np.ndarray, " M"]:
        if not len(states):
            return np.zeros(states.shape[-1], np.float32)
        match pooling:
            case "mean":
                vector = states.mean(axis=0)
            case "max":
                vector = states.max(axis=0)
            case "cls":
                vector = states[-1 if self.model.cls_last else 0]
            case "last":
                vector = states[-1]
        # The least length is that of torch.nn.functional.normalize.
        return vector / max(np.linalg.norm(vector), 1e-12) if normalize else vector

    def _reader(self, params, model=None) -> Reader:
        """Returns the reader of the run's model, or of `model`, which has these parameters."""
        model = model or self.model
        placement = Placement.of(params, self.config.mesh)
        batch = placement.rows(self.config.decode.batch)
        return Reader(model, model.reader(self.text_tokenizer), batch, placement)


# ----------------------------------------------------- the uses of a task whose model is an encoder


class EncoderStates(StatesUse):
    """The methods of a task whose model is of the kind Encoder, with or without a head."""

    @property
    def text_tokenizer(self):
        return self.tokenizer

    @property
    def attentions(self) -> tuple[str, ...]:
        """The kinds of attention that `attention` returns."""
        return self.model.attentions

    def attention(self, params, text: str, *, pieces: bool = False) -> Attended:
        """Returns the attention weights between the words of a text or, with `pieces`, its tokens.

        [CLS], [SEP] and each [MASK] are included. Raises UserError for a text longer than
        `config.model.max_length`.

        Examples:
          >>> task, params = transformer_jax.open_run("runs/bert")
          >>> task.attention(params, "the cat sat").keys
          ['[CLS]', 'the', 'cat', 'sat', '[SEP]']
        """
        begin, end = batching.text_frame(self.model, self.tokenizer)
        ids = [*begin, *self.tokenizer.encode_masked(text), *end]
        return attention.in_text(
            self.model,
            params,
            self.tokenizer,
            Inputs(jnp.array([ids])),
            stack="encoder",
            pieces=pieces,
        )


class FillingUse(EncoderStates):
    """The methods of a task whose Encoder fills masks."""

    def fill(
        self, params, texts: Iterable[str], top_k: int = 5, *, long: str = "split"
    ) -> Iterator[list[list[Filling]]]:
        """Yields the `top_k` likeliest words for each [MASK] of each text.

        An empty text has no masks. `long` decides what happens to a text longer than
        `config.model.max_length`: "split" reads it sentence by sentence, and a sentence that is
        still too long in parts; "skip" fills nothing; "refuse" raises UserError. A warning at the
        end lists the numbers of these texts. Raises UserError for any other text without [MASK].

        Examples:
          >>> task, params = transformer_jax.open_run("runs/bert")
          >>> [[words]] = task.fill(params, ["the [MASK] sat on the mat"], top_k=3)
          >>> len(words), words[0].probability > words[1].probability
          (3, True)
        """
        return self._reader(params).fill(params, arguments.as_texts(texts), top_k, long)


class EncoderUse(TextScores, FillingUse):
    """The methods of a task that trains an Encoder to predict the tokens of texts."""

    @property
    def scoring(self) -> Scoring:
        return Masked(self.model, self.tokenizer)
