"""The three kinds of model. Each family is one of them, and declares what else it can do.

Everything that uses a model works for every family of a kind: it asks for `kind` and `can`, and
calls the methods below. All models have the keys `vocab_size` and `d_model`.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import flax.linen as nn
from jaxtyping import Array, ArrayLike, Float, Int

from transformer_jax.config import UserError
from transformer_jax.layers import activations
from transformer_jax.layers.blocks import for_decoding
from transformer_jax.layers.linear import compute_dtype
from transformer_jax.layers.outputs import Output
from transformer_jax.models.decoding import CausalDecoding, SequenceDecoding


class Reading:
    """The inputs of a model.

    A unit is the input at one position. It is the id of a token, or an array of numbers.
    """

    modality: ClassVar[Literal["tokens", "images", "sound"]] = "tokens"
    unit_shape: ClassVar[tuple[int, ...]] = ()

    @property
    def num_states(self) -> int:
        """The number of arrays of states that `layers` returns: embeddings, and those of layers."""
        return self.num_layers + 1

    @nn.nowrap
    def reader(self, tokenizer: Any) -> Any:
        """Returns the tokenizer that gives the units of a text; by default that of the ids.

        Raises UserError for a tokenizer of a kind that does not suit the model.
        """
        return tokenizer


class SourceStates(abc.ABC):
    """The states that a SequenceToSequence model has of a source alone."""

    num_states = 2
    # The width of the encoder's states, which come first in the memory; None: that of the memory.
    source_width: ClassVar[int | None] = None

    @abc.abstractmethod
    def embedded(self, source: Int[ArrayLike, "B S"]) -> Float[Array, "B S E"]:
        """Returns the embeddings of source tokens, without positions."""

    def layers(
        self,
        source: Int[ArrayLike, "B S"],
        *,
        positions: Int[ArrayLike, "B S"] | None = None,
        segment_ids: Int[ArrayLike, "B S"] | None = None,
        token_types: Int[ArrayLike, "B S"] | None = None,
    ) -> tuple[Float[Array, "B S E"], Float[Array, "B S W"]]:
        """Returns the embeddings of source tokens, and the encoder's last states."""
        memory = self.encode(source, positions=positions, segment_ids=segment_ids)
        return self.embedded(source), memory[..., : self.source_width]


class Growing:
    """The rules of a family for `config.init_from`: how parameters begin with those of an earlier
    run of another shape or family. By default, tensors keep name and shape.
    """

    # Other families whose runs a run may begin with, and the value of `config.init_from` for the
    # workdir of one, without the key "run": {family: {prefix: {"part": ..., "layers": ...}}}.
    begins_with: ClassVar[Mapping[str, Mapping[str, Mapping[str, str]]]] = {}

    @classmethod
    def origin(cls, name: str) -> str:
        """Returns the tensor with which one begins that an earlier run lacks, or its own name."""
        return name

    @classmethod
    def origins_of_rows(cls, name: str, stored: int, wanted: int) -> Sequence[int] | None:
        """Returns the row in an earlier run with which each row of a longer tensor begins.

        None where a tensor of `stored` rows cannot become one of `wanted` rows.
        """
        return None

    @classmethod
    def resize(
        cls, name: str, stored: tuple[int, ...], wanted: tuple[int, ...]
    ) -> Callable[[Any], Any] | None:
        """Returns the function from a stored array to one of another shape, such as positions.

        None where the tensor cannot change its shape.
        """
        return None


# The capabilities that a family of models can declare in `can`:
#   token_types: `hidden` reads token types, whose number is the key `num_token_types`.
#   pool: `pooled(hidden)` returns one vector for each row (B, M).
#   fill: the logits of a position predict its own token, which the input hides.
#   next_sentence: `next_logits(hidden)` returns the logits of next-sentence prediction (B, 2).
#   detect: `detected(hidden)` returns the logits that tokens were replaced (B, L). A generator,
#     which is a part of the model, replaces them: see models/electra.py.
#   global: `hidden` reads the positions of global tokens, `global_positions` (B, N); -1 stands for
#     none. They see the whole row, and all tokens see them.
#   static: `vectors()` returns the vectors of the vocabulary (V, M). The embedding of a token,
#     layer 0, is its vector, and depends on no other token.
#   codes: `autoencoded(images)` reconstructs images, `codes(images)` returns the code of each patch
#     (B, N), and `images_of(codes)` the images uint8 of codes.
#   contact: `contact_logits(maps)` returns the logits of contacts (B, P, P) between the residues of
#     proteins, from corrected attention maps (B, P, P, layers * heads).
#   cooccur: `log_counts(first, second)` returns the logarithms of the counts of pairs (B, N).
#   write: `encode`, `begin` and `step` write texts by appended masks (models/cloze.py).
#   attend: all layers have attention weights, in the stacks "encoder" and "decoder".
#   cache: `cached` reads tokens into a key/value cache.
#   carry: `initial_carry` and `advance` read tokens into a state, see models/causal.py.
#   both_ways: `initial_carry` and `advance` read two texts, one of them backward: see
#     models/elmo.py.
#   permute: `permuted` predicts tokens in a permuted order, with a carry where the key
#     `memory_length` is not 0, see models/xlnet.py.
#
# METHODS has the methods that a family with a capability must have.
METHODS = {
    "pool": ("pooled",),
    "next_sentence": ("next_logits",),
    "detect": (
        "detected",
        "generated",
        "generator_transformed",
        "generator_output",
        "detection_flops",
        "narrow",
        "narrow_params",
    ),
    "static": ("vectors",),
    "cooccur": ("log_counts",),
    "write": ("encode", "begin", "step"),
    "codes": ("autoencoded", "codes", "images_of"),
    "contact": ("contact_logits",),
    "cache": ("cached",),
    "carry": ("initial_carry", "advance"),
    "both_ways": ("initial_carry", "advance", "words_flops"),
    "permute": ("permuted", "initial_carry"),
}


_UNLIMITED = 2**30  # positions
# The kinds of attention of a model all of whose layers have attention weights.
_ATTENTIONS = {
    "encoder": ("encoder",),
    "causal": ("decoder",),
    "sequence_to_sequence": ("cross", "encoder", "decoder"),
}


class Model(Reading, Growing, nn.Module, abc.ABC):
    """The methods that all families share.

    The comment at METHODS explains the words in `can`.
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
