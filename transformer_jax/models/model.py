"""The three kinds of model. Each family is one of them, and declares what else it can do.

Everything that uses a model works for every family of a kind: it asks for `kind` and `can`, and
calls the methods below. All models have the keys `vocab_size` and `d_model`.
"""

import abc
from typing import ClassVar, Literal

import flax.linen as nn
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import UserError
from transformer_jax.layers import activations
from transformer_jax.layers.blocks import for_decoding
from transformer_jax.layers.linear import compute_dtype
from transformer_jax.layers.outputs import Output
from transformer_jax.models.capabilities import METHODS
from transformer_jax.models.decoding import CausalDecoding, SequenceDecoding
from transformer_jax.models.growing import Growing
from transformer_jax.models.reading import Reading, SourceStates

_UNLIMITED = 2**30  # positions
# The kinds of attention of a model all of whose layers have attention weights.
_ATTENTIONS = {
    "encoder": ("encoder",),
    "causal": ("decoder",),
    "sequence_to_sequence": ("cross", "encoder", "decoder"),
}


class Model(Reading, Growing, nn.Module, abc.ABC):
    """The methods that all families share.

    models/capabilities.py explains the words in `can`.
    """

    kind: ClassVar[Literal["encoder", "causal", "sequence_to_sequence"]]
    can: ClassVar[frozenset[str]] = frozenset()
    # Names of the tensors whose rows are the tokens of the vocabulary.
    vocabulary: ClassVar[tuple[str, ...]] = ("token_embed/embedding",)
    word_table: ClassVar[str | None] = "token_embed/embedding"  # None: it has no vectors of words
    # Parameters that only pre-training uses.
    heads: ClassVar[tuple[str, ...]] = ()
    # The largest number of positions. Most families have it as a key. None: any number.
    max_length: ClassVar[int | None]
    # The stacks of layers that decoding applies to one token at a time.
    decoding_stacks: ClassVar[tuple[str, ...]] = ("decoder",)
    # Whether the [CLS] of a row is its last token (Yang et al. 2019), not its first.
    cls_last: ClassVar[bool] = False
    # The dtype of the computation. Most families have it as a key.
    dtype: ClassVar[str] = "float32"

    @classmethod
    def missing(cls) -> list[str]:
        """Returns the methods of its kind and capabilities that a family does not define."""
        of_capabilities = {name for word in cls.can for name in METHODS.get(word, ())}
        return sorted(cls.__abstractmethods__ | of_capabilities - set(dir(cls)))

    def check(self) -> None:
        """Raises UserError for a wrong value of the family's own keys."""

    @abc.abstractmethod
    def hidden(self, *tokens: Int[ArrayLike, "B L"], train: bool = False) -> Float[Array, "B L M"]:
        """Returns the states before the output layers, from token ids."""

    @abc.abstractmethod
    def output(self) -> Output:
        """Returns the output layer: a `Projection`, or another output of layers/outputs.py.

        Rows beyond `vocab_size` pad the vocabulary.
        """

    @abc.abstractmethod
    def flops(self, *sizes: int) -> float:
        """Returns the FLOPs of a forward pass over one row: two for each multiply-add."""

    def transformed(self, hidden: Float[Array, "*B M"]) -> Float[Array, "*B E"]:
        """Applies the layers in front of the output layer to states (..., M) -> (..., E)."""
        return hidden

    def logits(self, hidden: Float[Array, "*B M"]) -> Float[Array, "*B V"]:
        """Projects states (..., M) to logits (..., V) float32."""
        logits = self.output().first(self.vocab_size).logits(self.transformed(hidden))
        return activations.named(self, "logits", logits)

    @nn.nowrap
    def group(self, path: tuple[str, ...]) -> str:
        """Returns the group of the parameter at this path, for `config.optimizer.groups`.

        "" is `config.optimizer` itself. It is that of all parameters where a config has no groups.
        """
        return ""

    @nn.nowrap
    def depth(self, path: tuple[str, ...]) -> int | None:
        """Returns the place of a parameter's layer, for `config.optimizer.layer_decay`.

        The lowest layer is 1. Embeddings have 0, and parameters above all layers None. The layers
        of a stack are in its order; this method is not asked for them.
        """
        is_input = "embed" in path[0] and path[0] != "output_embed"
        return 0 if is_input else None

    def num_padding(self) -> int:
        """Returns the number of parameters that pad the vocabulary, no part of the model's size."""
        return 0

    @property
    def attentions(self) -> tuple[str, ...]:
        """The kinds of attention whose weights can be read: "encoder", "decoder", "cross"."""
        return _ATTENTIONS[self.kind] if "attend" in self.can else ()

    @property
    def window(self) -> int:
        """The largest number of positions, a number beyond any length where there is none."""
        return _UNLIMITED if self.max_length is None else self.max_length

    @nn.nowrap
    def for_decoding(self, params):
        """Returns the parameters in the form in which decoding is fastest."""
        return for_decoding(params, compute_dtype(self.dtype), self.decoding_stacks)


class Encoder(Model):
    """Tokens (B, L) -> states (B, L, M), each of which sees the whole row."""

    kind = "encoder"

    @abc.abstractmethod
    def hidden(
        self,
        tokens: Int[ArrayLike, "B L"],
        *,
        positions: Int[ArrayLike, "B L"] | None = None,
        segment_ids: Int[ArrayLike, "B L"] | None = None,
        token_types: Int[ArrayLike, "B L"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B L M"]:
        """Returns the states of the last layer (B, L, M)."""

    @abc.abstractmethod
    def layers(
        self,
        tokens: Int[ArrayLike, "B L"],
        *,
        positions: Int[ArrayLike, "B L"] | None = None,
        segment_ids: Int[ArrayLike, "B L"] | None = None,
        token_types: Int[ArrayLike, "B L"] | None = None,
    ) -> Float[Array, "N B L M"]:
        """Returns the embeddings and the states of all layers (layers + 1, B, L, M)."""

    @abc.abstractmethod
    def flops(self, length: int, predictions: int) -> float:
        """Returns the FLOPs of a forward pass over one row with so many predicted positions."""


class Causal(CausalDecoding, Model):
    """Tokens (B, L) -> states (B, L, M), each of which sees the tokens up to its own.

    To generate text, a family has a key/value cache or a recurrent state: models/causal.py has a
    class for each.
    """

    kind = "causal"

    def __call__(
        self,
        tokens: Int[ArrayLike, "B L"],
        positions: Int[ArrayLike, "B L"] | None = None,
        segment_ids: Int[ArrayLike, "B L"] | None = None,
        *,
        train: bool = False,
    ) -> Float[Array, "B L V"]:
        hidden = self.hidden(tokens, positions=positions, segment_ids=segment_ids, train=train)
        return self.logits(hidden)

    @abc.abstractmethod
    def hidden(
        self,
        tokens: Int[ArrayLike, "B L"],
        *,
        positions: Int[ArrayLike, "B L"] | None = None,
        segment_ids: Int[ArrayLike, "B L"] | None = None,
        token_types: Int[ArrayLike, "B L"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B L M"]:
        """Returns the states before the output projection (B, L, M)."""

    @abc.abstractmethod
    def flops(self, length: int, predictions: int | None = None) -> float:
        """Returns the FLOPs of a forward pass over one row with so many predicted positions.

        None: all positions.
        """


class SequenceToSequence(SourceStates, SequenceDecoding, Model):
    """Source (B, S) and target (B, T) -> states (B, T, M) of the target tokens.

    `begin` and `step` serve a family with "cache" in `can`. It has `cached(target, positions,
    slots, *, memory=None, segments, slot, ancestors=None)`. It reads tokens (N, K) into the
    collection "cache" from `slot` () on, and returns their states (N, K, M). A new cache has so
    many `slots`. Only the first call has a `memory`; it stores what attention needs of it in the
    collection "memory". With `ancestors` (N, K, P), the tokens are the hypotheses of one search: a
    token attends, in each group of K slots, to that of the hypothesis that it descends from.

    Any other family defines `begin` and `step` with a state of its own (layers/decoding.py).
    """

    kind = "sequence_to_sequence"
    # Some families have it as a key. None: source and target share a vocabulary.
    source_vocab_size: ClassVar[int | None] = None

    def hidden(
        self,
        source: Int[ArrayLike, "B S"],
        target: Int[ArrayLike, "B T"],
        *,
        source_positions: Int[ArrayLike, "B S"] | None = None,
        source_segment_ids: Int[ArrayLike, "B S"] | None = None,
        target_positions: Int[ArrayLike, "B T"] | None = None,
        target_segment_ids: Int[ArrayLike, "B T"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B T M"]:
        """Returns the decoder's states before the output projection (B, T, M)."""
        memory = self.encode(
            source, positions=source_positions, segment_ids=source_segment_ids, train=train
        )
        return self.decode(
            target,
            memory,
            positions=target_positions,
            segment_ids=target_segment_ids,
            source_segment_ids=source_segment_ids,
            train=train,
        )

    @abc.abstractmethod
    def encode(
        self,
        source: Int[ArrayLike, "B S"],
        *,
        positions: Int[ArrayLike, "B S"] | None = None,
        segment_ids: Int[ArrayLike, "B S"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B S W"]:
        """Encodes source tokens (B, S) to memory (B, S, W)."""

    @abc.abstractmethod
    def decode(
        self,
        target: Int[ArrayLike, "B T"],
        memory: Float[Array, "B S W"],
        *,
        positions: Int[ArrayLike, "B T"] | None = None,
        segment_ids: Int[ArrayLike, "B T"] | None = None,
        source_segment_ids: Int[ArrayLike, "B S"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B T M"]:
        """Returns the states (B, T, M) of target tokens (B, T) with memory (B, S, W)."""

    @abc.abstractmethod
    def flops(
        self, source_length: int, target_length: int, predictions: int | None = None
    ) -> float:
        """Returns the FLOPs of a forward pass over one row with so many predicted positions.

        None: all positions of the target.
        """


KINDS = (Encoder, Causal, SequenceToSequence)


def check_class(cls: type, file: str) -> None:
    """Raises UserError for a class that is of no kind, or that lacks a method of its kind."""
    if not issubclass(cls, KINDS):
        kinds = ", ".join(kind.__name__ for kind in KINDS)
        raise UserError(
            f"{file}: the class {cls.__name__} must derive from one of {kinds} "
            "(transformer_jax.models.model)"
        )
    if missing := cls.missing():
        raise UserError(
            f"{file}: the class {cls.__name__} is a model of kind {cls.kind!r} and lacks the "
            f"method {missing[0]!r}"
        )
