"""The contract of models: inputs, kinds, how they decode, and what a family can declare."""

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Num

from transformer_jax.config import UserError
from transformer_jax.layers import activations, parameters
from transformer_jax.layers.blocks import for_decoding
from transformer_jax.layers.decoding import GrowingRows, Ring, Rows, SourceRows
from transformer_jax.layers.embeddings import Output, row_positions
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import compute_dtype

# --------------------------------------------------------------------------------------------------
# What a model reads.


@flax.struct.dataclass
class Inputs:
    """The rows that a model reads, and what is known about each position. None: not given.

    A model reads one of `tokens`, `images` and `sound`, as its `modality` says, and those of the
    other fields that its family knows.

    Attributes:
      tokens: ids; where a family reads words by their characters, those of each word.
      images: pixels, from 0 to 255.
      sound: samples.
      positions: those within an example, from 0. None: 0, 1, ... in each row.
      segment_ids: numbers from 1, which separate the examples of a packed row; 0 is padding. None:
        a row is one example.
      token_types: such as 0 and 1 for the two texts of a pair. None: all are 0.
      ranks: a token sees those of its own rank and of lower ranks. None: it sees all.
      private: no other token sees a private one.
      global_positions: those of tokens that see the whole row and that all tokens see; -1 stands
        for none.
      lengths: the number of samples of each row; those behind them are padding. None: all.
      masked: the frames of sound in whose place a learned vector stands.
      feature_mask: the channels of the frames that are set to 0.
      visible: the patches of an image that are read, in this order. None: all.
    """

    tokens: Int[ArrayLike, "B L *C"] | None = None
    images: Num[ArrayLike, "B H W C"] | None = None
    sound: Float[ArrayLike, "B S"] | None = None
    positions: Int[ArrayLike, "B L"] | None = None
    segment_ids: Int[ArrayLike, "B L"] | None = None
    token_types: Int[ArrayLike, "B L"] | None = None
    ranks: Int[ArrayLike, "B L"] | None = None
    private: Bool[ArrayLike, "B L"] | None = None
    global_positions: Int[ArrayLike, "B N"] | None = None
    lengths: Int[ArrayLike, " B"] | None = None
    masked: Bool[ArrayLike, "B F"] | Int[ArrayLike, "B F"] | None = None
    feature_mask: Bool[ArrayLike, "B M"] | Int[ArrayLike, "B M"] | None = None
    visible: Int[ArrayLike, "B K"] | None = None

    @property
    def mask(self) -> Mask:
        """What the tokens see of each other: their own example, and what ranks let them see."""
        return Mask(
            query_segments=self.segment_ids,
            key_segments=self.segment_ids,
            query_ranks=self.ranks,
            key_ranks=self.ranks,
            private_keys=self.private,
        )


def takes_inputs(method: Callable) -> Callable:
    """Lets a method that reads `Inputs` take arrays as well.

    `hidden(tokens, segment_ids=ids)` is short for `hidden(Inputs(tokens, segment_ids=ids))`. The
    first array is that of the model's modality. Other arguments reach the method as they are.
    """

    @functools.wraps(method)
    def call(self, inputs, *others, **options):
        if not isinstance(inputs, Inputs):
            fields = Inputs.__dataclass_fields__
            given = {name: options.pop(name) for name in list(options) if name in fields}
            inputs = Inputs(**{self.modality: inputs}, **given)
        return method(self, inputs, *others, **options)

    return call


# --------------------------------------------------------------------------------------------------
# How models decode: `begin` reads prompts, and `step` reads a token of each hypothesis.


class CausalDecoding:
    """The decoding of a Causal model with "cache" or "carry" in `can`."""

    def begin(
        self, params, prompts: Int[ArrayLike, "B L"], lengths: Int[ArrayLike, " B"], *, slots: int
    ) -> tuple[Float[Array, "B V"], Rows]:
        """Reads prompts. Returns (the logits (B, V) of their next tokens, the state of decoding).

        A row of `prompts` (B, L) begins with `lengths` (B,) tokens; the others are padding. There
        is room for `slots` tokens. The parameters are those of `for_decoding`.
        """
        batch, length = prompts.shape
        if "carry" in self.can:
            filled = jnp.arange(length) < lengths[:, None]
            carry = self.initial_carry(batch)
            hidden, cache = self._applied(params, prompts, carry, filled=filled, method="advance")
            slots = 0
        else:
            positions = jnp.broadcast_to(jnp.arange(length), prompts.shape)
            # Slots behind the end of a prompt are overwritten before they are attended to.
            hidden, cache = self._cached(params, {}, prompts, positions, slots)
        logits = self._applied(params, hidden[jnp.arange(batch), lengths - 1], method="logits")
        return logits, Rows(cache, lengths[:, None], slots)

    def step(
        self, params, state: Rows, tokens: Int[ArrayLike, "B K"]
    ) -> tuple[Float[Array, "B K V"], Rows]:
        """Reads a token of each hypothesis (B, K). Returns (logits (B, K, V), the new state)."""
        rows = tokens.reshape(-1, 1)
        if "carry" in self.can:
            hidden, cache = self._applied(params, rows, state.cache, method="advance")
        else:
            # A text that has filled its slots has no next position.
            positions = jnp.minimum(state.lengths.reshape(-1, 1), state.slots - 1)
            hidden, cache = self._cached(params, state.cache, rows, positions, state.slots)
        logits = self._applied(params, hidden[:, 0], method="logits")
        new = state.replace(cache=cache, lengths=state.lengths + 1)
        return logits.reshape(*tokens.shape, -1), new

    def _cached(self, params, cache: dict, *arguments):
        variables = {"params": params, **cache}
        return self.apply(variables, *arguments, method="cached", mutable=["cache"])

    def _applied(self, params, *arguments, **options):
        return self.apply({"params": params}, *arguments, **options)


class SequenceDecoding:
    """The decoding of a SequenceToSequence model with "cache" in `can`."""

    def begin(
        self,
        params,
        prompts: Int[ArrayLike, "N 1"],
        encoder_output: Float[Array, "N S M"],
        segments: Int[ArrayLike, "N S"],
        *,
        beams: int,
    ) -> tuple[Float[Array, "N V"], Ring]:
        """Reads first target tokens. Returns (logits (N, V), the state of decoding).

        `prompts` are (N, 1), `encoder_output` (N, S, M) is that of sources, and `segments` (N, S)
        are 1 for their tokens and 0 for padding. An input has up to `beams` hypotheses. The
        parameters are those of `for_decoding`.
        """
        where = dict(segments=segments, slot=jnp.int32(0))
        positions = jnp.zeros_like(prompts)
        logits, new = self._cached(
            params, {}, prompts, positions, beams, encoder_output=encoder_output, **where
        )
        return logits[:, 0], Ring.begun(new, segments, beams)

    def step(
        self, params, state: Ring, tokens: Int[ArrayLike, "N K"]
    ) -> tuple[Float[Array, "N K V"], Ring]:
        """Reads a token of each hypothesis (N, K). Returns (logits (N, K, V), the new state)."""
        state = state.opened()
        # An input that is done may have no next position.
        positions = jnp.minimum(state.positions, self.window - 1)[:, None]
        logits, new = self._cached(
            params,
            {"cache": state.cache, "cross_cache": state.cross_cache},
            tokens,
            positions,
            state.beams,
            segments=state.segments,
            slot=state.slot * state.beams,
            ancestors=state.ancestors,
        )
        return logits, state.written(new)

    def _cached(self, params, collections: dict, *arguments, **options):
        hidden, new = self.apply(
            {"params": params, **collections},
            *arguments,
            **options,
            method="cached",
            mutable=["cache", "cross_cache"],
        )
        return self.apply({"params": params}, hidden, method="logits"), new


class RecurrentDecoding:
    """The decoding of a SequenceToSequence model whose decoder has a recurrent state."""

    @abc.abstractmethod
    def begun(
        self, encoder_output: Float[Array, "B S W"], segments: Int[ArrayLike, "B S"]
    ) -> tuple[dict[str, Array], Any]:
        """Returns arrays (B, S, ...) that all steps see, and the state before the first token.

        The state is a tree of arrays (B, S, ...). That of a source stands at each of its positions.
        """

    @abc.abstractmethod
    def advanced(
        self, state: SourceRows, tokens: Int[ArrayLike, "N K"]
    ) -> tuple[Float[Array, "N K V"], Any]:
        """Returns the logits after a token of each hypothesis, and the new state."""

    def begin(
        self,
        params,
        prompts: Int[ArrayLike, "N 1"],
        encoder_output: Float[Array, "N S M"],
        segments: Int[ArrayLike, "N S"],
        *,
        beams: int,
    ) -> tuple[Float[Array, "N V"], SourceRows]:
        """Reads first target tokens, as `SequenceDecoding.begin`."""
        source, state = self.apply({"params": params}, encoder_output, segments, method="begun")
        first = jax.tree.map(lambda x: x[:, 0], state)
        source = source | {"segments": segments}
        rows = SourceRows(cache=first, lengths=jnp.zeros_like(prompts), source=source)
        logits, rows = self.step(params, rows, prompts)
        return logits[:, 0], rows

    def step(
        self, params, state: SourceRows, tokens: Int[ArrayLike, "N K"]
    ) -> tuple[Float[Array, "N K V"], SourceRows]:
        """Reads a token of each hypothesis (N, K). Returns (logits (N, K, V), the new state)."""
        logits, cache = self.apply({"params": params}, state, tokens, method="advanced")
        return logits, state.replace(cache=cache, lengths=state.lengths + 1)


# --------------------------------------------------------------------------------------------------
# The three kinds of model. Each family is one of them, and declares what else it can do.
#
# Everything that uses a model works for every family of a kind: it asks for `kind` and `can`, and
# calls the methods below. All models have the keys `vocab_size` and `d_model`.


# The capabilities that a family of models can declare in `can`:
#   token_types: `hidden` reads token types, whose number is the key `num_token_types`.
#   pool: `pooled(hidden)` returns one vector for each row (B, M).
#   fill: the logits of a position predict its own token, which the input hides.
#   next_sentence: `next_logits(hidden)` returns the logits of next-sentence prediction (B, 2).
#   detect: `detected(hidden)` returns the logits that tokens were replaced (B, L). A generator,
#     which is a part of the model, replaces them: see families/electra.py.
#   global: `hidden` reads the positions of global tokens, `global_positions` (B, N); -1 stands for
#     none. They see the whole row, and all tokens see them.
#   static: `vectors()` returns the vectors of the vocabulary (V, M). The embedding of a token,
#     layer 0, is its vector, and depends on no other token.
#   codes: `autoencoded(images)` reconstructs images, `codes(images)` returns the code of each patch
#     (B, N), and `images_of(codes)` the images uint8 of codes.
#   contact: `contact_logits(maps)` returns the logits of contacts (B, P, P) between the residues of
#     proteins, from corrected attention maps (B, P, P, layers * heads).
#   cooccur: `log_counts(first, second)` returns the logarithms of the counts of pairs (B, N).
#   write: `encode`, `begin` and `step` write texts by appended masks, as in `UnifiedLM`.
#   attend: all layers have attention weights, in the stacks "encoder" and "decoder".
#   cache: `cached` reads tokens into a key/value cache.
#   carry: `initial_carry` and `advance` read tokens into a state, as in `Recurrent`.
#   both_ways: `initial_carry` and `advance` read two texts, one of them backward: see
#     families/elmo.py.
#   permute: `permuted` predicts tokens in a permuted order, with a carry where the key
#     `memory_length` is not 0, see families/xlnet.py.
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


class Model(nn.Module, abc.ABC):
    """The methods that all families share.

    The comment at METHODS explains the words in `can`.
    """

    kind: ClassVar[Literal["encoder", "causal", "sequence_to_sequence"]]
    can: ClassVar[frozenset[str]] = frozenset()
    # What stands at one position of the inputs: a token, or an array of such a shape.
    modality: ClassVar[Literal["tokens", "images", "sound"]] = "tokens"
    unit_shape: ClassVar[tuple[int, ...]] = ()
    # Other families whose runs a run may begin with, and the value of `config.init_from` for the
    # workdir of one, without the key "run": {family: {prefix: {"part": ..., "layers": ...}}}.
    begins_with: ClassVar[Mapping[str, Mapping[str, Mapping[str, str]]]] = {}
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

    # What a run takes from one of another shape or family, with `config.init_from`. By default,
    # tensors keep name and shape.

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

    # What the model reads, and what it returns.

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

    @abc.abstractmethod
    def hidden(self, *inputs: Inputs, train: bool = False) -> Float[Array, "B L M"]:
        """Returns the states before the output layers."""

    @abc.abstractmethod
    def output(self) -> Output:
        """Returns the output layer: a `Projection`, or another output of layers/embeddings.py.

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
    def hidden(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L M"]:
        """Returns the states of the last layer (B, L, M)."""

    @abc.abstractmethod
    def layers(self, inputs: Inputs) -> Float[Array, "N B L M"]:
        """Returns the embeddings and the states of all layers (layers + 1, B, L, M)."""

    @abc.abstractmethod
    def flops(self, length: int, predictions: int) -> float:
        """Returns the FLOPs of a forward pass over one row with so many predicted positions."""


class Causal(CausalDecoding, Model):
    """Tokens (B, L) -> states (B, L, M), each of which sees the tokens up to its own.

    To generate text, a family has a key/value cache or a recurrent state: `Cached` and `Recurrent`
    are the classes of such families.
    """

    kind = "causal"

    @takes_inputs
    def __call__(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L V"]:
        return self.logits(self.hidden(inputs, train=train))

    @abc.abstractmethod
    def hidden(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L M"]:
        """Returns the states before the output projection (B, L, M)."""

    @abc.abstractmethod
    def flops(self, length: int, predictions: int | None = None) -> float:
        """Returns the FLOPs of a forward pass over one row with so many predicted positions.

        None: all positions.
        """


class SequenceToSequence(SequenceDecoding, Model):
    """Source (B, S) and target (B, T) -> states (B, T, M) of the target tokens.

    `begin` and `step` serve a family with "cache" in `can`. It has `cached(target, positions,
    slots, *, encoder_output=None, segments, slot, ancestors=None)`. It reads tokens (N, K) into the
    collection "cache" from `slot` () on, and returns their states (N, K, M). A new cache has so
    many `slots`. Only the first call has an `encoder_output`; it stores what attention needs of it
    in the collection "cross_cache". With `ancestors` (N, K, P), the tokens are the hypotheses of
    one search: a token attends, in each group of K slots, to that of the hypothesis that it
    descends from.

    Any other family defines `begin` and `step` with a state of its own (layers/decoding.py).
    """

    kind = "sequence_to_sequence"
    # Some families have it as a key. None: source and target share a vocabulary.
    source_vocab_size: ClassVar[int | None] = None
    num_states = 2
    # The width of the encoder's states, which come first in the encoder output; None: that of all
    # of it.
    source_width: ClassVar[int | None] = None

    def __call__(
        self,
        source: Inputs | Int[ArrayLike, "B S"],
        target: Inputs | Int[ArrayLike, "B T"],
        *,
        train: bool = False,
    ) -> Float[Array, "B T V"]:
        """Returns the logits of the next target tokens (B, T, V) float32."""
        return self.logits(self.hidden(source, target, train=train))

    def hidden(
        self,
        source: Inputs | Int[ArrayLike, "B S"],
        target: Inputs | Int[ArrayLike, "B T"],
        *,
        train: bool = False,
    ) -> Float[Array, "B T M"]:
        """Returns the decoder's states before the output projection (B, T, M)."""
        source, target = (x if isinstance(x, Inputs) else Inputs(x) for x in (source, target))
        encoder_output = self.encode(source, train=train)
        return self.decode(
            target, encoder_output, source_segment_ids=source.segment_ids, train=train
        )

    @abc.abstractmethod
    def embedded(self, source: Int[ArrayLike, "B S"]) -> Float[Array, "B S E"]:
        """Returns the embeddings of source tokens, without positions."""

    @takes_inputs
    def layers(self, source: Inputs) -> tuple[Float[Array, "B S E"], Float[Array, "B S W"]]:
        """Returns the embeddings of source tokens, and the encoder's last states."""
        encoder_output = self.encode(source)
        return self.embedded(source.tokens), encoder_output[..., : self.source_width]

    @abc.abstractmethod
    def encode(self, source: Inputs, *, train: bool = False) -> Float[Array, "B S W"]:
        """Encodes source tokens (B, S) to encoder_output (B, S, W)."""

    @abc.abstractmethod
    def decode(
        self,
        target: Inputs,
        encoder_output: Float[Array, "B S W"],
        *,
        source_segment_ids: Int[ArrayLike, "B S"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B T M"]:
        """Returns the states (B, T, M) of target tokens (B, T) with encoder_output (B, S, W)."""

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
            "(transformer_jax.contracts.model)"
        )
    if missing := cls.missing():
        raise UserError(
            f"{file}: the class {cls.__name__} is a model of kind {cls.kind!r} and lacks the "
            f"method {missing[0]!r}"
        )


# --------------------------------------------------------------------------------------------------
# Encoder-decoders whose layers all have attention, and a key/value cache in decoding.


class CachedSequenceToSequence(SequenceToSequence):
    """Source (B, S) and target (B, T) int32 -> logits of the next target tokens (B, T, V) float32.

    A family defines `encoded` and `decoded`.
    """

    can = frozenset({"attend", "cache"})

    @abc.abstractmethod
    def encoded(
        self,
        source: Int[ArrayLike, "B S"],
        positions: Int[ArrayLike, "B S"] | None,
        *,
        mask: Mask,
        train: bool = False,
    ) -> Float[Array, "B S M"]:
        """Returns the encoder_output of source tokens at `positions`; None: 0, 1, ..."""

    @abc.abstractmethod
    def decoded(
        self,
        target: Int[ArrayLike, "B T"],
        positions: Int[ArrayLike, "B T"] | Int[ArrayLike, "B 1"] | None,
        encoder_output: Float[Array, "B S M"] | None,
        *,
        mask: Mask,
        cross_mask: Mask,
        train: bool = False,
        decode: int = 0,
    ) -> Float[Array, "B T M"]:
        """Returns the states of target tokens at `positions`, before the output projection.

        `decode` is the number of slots of the collection "cache"; 0: it is not used.
        """

    @takes_inputs
    def encode(self, source: Inputs, *, train: bool = False) -> Float[Array, "B S M"]:
        return self.encoded(source.tokens, source.positions, mask=source.mask, train=train)

    @takes_inputs
    def decode(
        self,
        target: Inputs,
        encoder_output: Float[Array, "B S M"],
        *,
        source_segment_ids: Int[ArrayLike, "B S"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B T M"]:
        segments = target.segment_ids
        mask = Mask(causal=True, query_segments=segments, key_segments=segments)
        cross_mask = Mask(query_segments=segments, key_segments=source_segment_ids)
        return self.decoded(
            target.tokens,
            target.positions,
            encoder_output,
            mask=mask,
            cross_mask=cross_mask,
            train=train,
        )

    def cached(
        self,
        target: Int[ArrayLike, "N K"],
        positions: Int[ArrayLike, "N K"] | Int[ArrayLike, "N 1"],
        slots: int,
        *,
        encoder_output: Float[Array, "N S M"] | None = None,
        segments: Int[ArrayLike, "N S"],
        slot: Int[ArrayLike, ""],
        ancestors: Int[ArrayLike, "N K P"] | None = None,
    ) -> Float[Array, "N K M"]:
        mask = Mask(causal=ancestors is None, query_slots=slot, ancestors=ancestors)
        cross_mask = Mask(key_segments=segments)
        return self.decoded(
            target, positions, encoder_output, mask=mask, cross_mask=cross_mask, decode=slots
        )

    def layer_sizes(self) -> parameters.LayerSizes:
        """Returns the sizes of a layer, for its FLOPs."""
        return parameters.LayerSizes.of(self)

    def flops(
        self, source_length: int, target_length: int, predictions: int | None = None
    ) -> float:
        """Returns the FLOPs of a forward pass over one row: two for each multiply-add.

        `predictions` is the number of predicted positions; None: all of the target's. Causal
        attention counts half its square. Padding is counted; norms, softmax and embedding look-ups
        are not.
        """
        sizes = self.layer_sizes()
        encoder = sizes.layer(source_length, source_length**2)
        cross = sizes.attention(target_length, source_length, target_length * source_length)
        decoder = sizes.layer(target_length, parameters.causal_pairs(target_length)) + cross
        if predictions is None:
            predictions = target_length
        output = parameters.dense(predictions, self.d_model, self.vocab_size)
        return self.num_encoder_layers * encoder + self.num_decoder_layers * decoder + output


# --------------------------------------------------------------------------------------------------
# Causal models by their memory of the tokens so far: a key/value cache, or a recurrent state.


class Cached(Causal):
    """A causal model with a key/value cache. It defines `decoded` and the key `max_length`."""

    can = frozenset({"attend", "cache"})

    @abc.abstractmethod
    def decoded(
        self,
        tokens: Int[ArrayLike, "B L"],
        positions: Int[ArrayLike, "B L"],
        *,
        mask: Mask,
        train: bool = False,
        decode: int = 0,
    ) -> Float[Array, "B L M"]:
        """Returns the states of tokens at `positions`, before the output projection.

        `decode` is the number of slots of the collection "cache"; 0: it is not used.
        """

    @takes_inputs
    def hidden(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L M"]:
        segments, positions = inputs.segment_ids, inputs.positions
        mask = Mask(causal=True, query_segments=segments, key_segments=segments)
        if positions is None:
            positions = row_positions(inputs.tokens, self.max_length)
        return self.decoded(inputs.tokens, positions, mask=mask, train=train)

    def cached(
        self, tokens: Int[ArrayLike, "B L"], positions: Int[ArrayLike, "B L"], slots: int
    ) -> Float[Array, "B L M"]:
        """Reads tokens into the slots `positions` of a cache of so many `slots`.

        Returns the states. Raises UserError where the cache has too few or too many slots.
        """
        if not tokens.shape[1] <= slots <= self.max_length:
            raise UserError(
                f"slots={slots}: must be at least the number of tokens in a row, "
                f"{tokens.shape[1]}, and at most config.model.max_length={self.max_length}"
            )
        mask = Mask(causal=True, query_slots=positions)
        return self.decoded(tokens, positions, mask=mask, decode=slots)


class Recurrent(Causal):
    """A causal model that reads a row of any length into a state. It defines what follows.

    `initial_carry(rows)` returns the state before the first token, a tree of arrays (rows, ...).
    `advance(tokens, carry, *, restarts=None, filled=None, train=False)` reads tokens (B, L) and
    returns (states (B, L, M), carry). Where `restarts` (B, L) is 1, a document begins: the state is
    the initial one before that token. Where `filled` (B, L) is 0, the token is padding and leaves
    the state as it is.
    """

    can = frozenset({"carry"})
    max_length = None
    decoding_stacks = ()

    @takes_inputs
    def hidden(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L M"]:
        segments, restarts, filled = inputs.segment_ids, None, None
        if segments is not None:
            restarts = jnp.diff(segments, axis=1, prepend=segments[:, :1]) != 0
            filled = segments > 0
        carry = self.initial_carry(len(inputs.tokens))
        return self.advance(inputs.tokens, carry, restarts=restarts, filled=filled, train=train)[0]


# --------------------------------------------------------------------------------------------------
# Encoders that write texts: a mask behind a text is filled, then the next (Dong et al. 2019).

# The token types of the first and the second text of a row, by objective, as in the published code.
TOKEN_TYPES = {
    "bidirectional": (0, 1),
    "sequence_to_sequence": (4, 5),
    "left_to_right": (2, 2),
    "right_to_left": (3, 3),
}
_NUM_TOKEN_TYPES = 6


def token_types(objective: str, num_token_types: int) -> tuple[int, int]:
    """Returns the token types of both texts in a model that has so many.

    A model with fewer than six distinguishes no objectives.
    """
    types = (0, 1) if num_token_types < _NUM_TOKEN_TYPES else TOKEN_TYPES[objective]
    first, second = (min(number, num_token_types - 1) for number in types)
    return first, second


class UnifiedLM(Encoder):
    """An encoder that also writes the target of a source (Dong et al. 2019, sections 2.3 and 2.5).

    Both are one row. A token of the source sees the source; a token of the target sees the source
    and the target up to its own place. The state of a mask behind them predicts the next token.
    A family defines `_embed`, the stack `encoder`, and `hidden`, which heeds `ranks` and `private`
    of its inputs.
    """

    can = frozenset({"attend", "fill", "write"})
    decoding_stacks = ("encoder",)

    @abc.abstractmethod
    def _embed(self, inputs: Inputs, *, train: bool) -> Float[Array, "B L M"]:
        """Returns the inputs of the first layer."""

    @takes_inputs
    def encode(self, source: Inputs, *, train: bool = False) -> Float[Array, "B S M"]:
        """Returns the embeddings of sources. The layers read them in `begin`, with the masks."""
        first, _ = token_types("sequence_to_sequence", self.num_token_types)
        types = jnp.full_like(source.tokens, first)
        return self._embed(source.replace(token_types=types), train=train)

    @nn.nowrap
    def begin(
        self,
        params,
        prompts: Int[ArrayLike, "N 1"],
        encoder_output: Float[Array, "N S M"],
        segments: Int[ArrayLike, "N S"],
        *,
        beams: int,
    ) -> tuple[Float[Array, "N V"], GrowingRows]:
        """Reads sources. Returns (the logits of the first target tokens, the state of decoding).

        `prompts` are masks, `encoder_output` is that of `encode`, and `segments` are 1 for the
        tokens of a source and 0 for padding behind them. The parameters are those of
        `for_decoding`. The number of `beams` is that of the tokens in `step`.
        """
        lengths = segments.sum(axis=1)
        slots = encoder_output.shape[1] + 1
        logits, cache = self._written(params, {}, prompts, encoder_output, lengths, method="_read")
        state = {"cache": cache["cache"], "masks": prompts}
        return logits, GrowingRows(state, lengths[:, None], slots)

    @nn.nowrap
    def step(
        self, params, state: GrowingRows, tokens: Int[ArrayLike, "N K"]
    ) -> tuple[Float[Array, "N K V"], GrowingRows]:
        """Reads a token of each hypothesis (N, K). Returns (logits (N, K, V), the new state)."""
        cache = {"cache": state.cache["cache"]}
        read = jnp.concatenate([tokens.reshape(-1, 1), state.cache["masks"]], axis=1)
        # The next token takes the slot of the mask, so that the cache holds no mask for long.
        places = state.lengths.reshape(-1, 1) + jnp.arange(2)
        # An input that is done may have no next slot.
        places = jnp.minimum(places, state.slots - 1)
        logits, new = self._written(params, cache, read, places, state.slots, method="_append")
        state = state.replace(cache=state.cache | new, lengths=state.lengths + 1)
        return logits.reshape(*tokens.shape, -1), state

    @nn.nowrap
    def _written(self, params, cache: dict, *arguments, method: str):
        """Returns (the logits of the states that a method returns, the collection "cache")."""
        variables = {"params": params}
        states, new = self.apply(variables | cache, *arguments, method=method, mutable=["cache"])
        return self.apply(variables, states, method="logits"), new

    def _read(
        self,
        masks: Int[Array, "N 1"],
        encoder_output: Float[Array, "N S M"],
        lengths: Int[Array, " N"],
    ) -> Float[Array, "N M"]:
        """Reads embedded sources and the masks behind them. Returns the states of the masks."""
        rows, places = jnp.arange(len(encoder_output)), jnp.arange(encoder_output.shape[1] + 1)
        x = jnp.pad(encoder_output, ((0, 0), (0, 1), (0, 0)))
        x = x.at[rows, lengths].set(self._embedded_target(masks, lengths[:, None])[:, 0])
        slots = jnp.broadcast_to(places, (len(rows), len(places)))
        mask = Mask(causal=True, prefix=lengths, query_slots=slots)
        return self.encoder(x, mask=mask, decode=len(places))[rows, lengths]

    def _append(
        self, tokens: Int[Array, "N Q"], places: Int[Array, "N Q"], slots: int
    ) -> Float[Array, "N M"]:
        """Reads target tokens and a mask at these places. Returns the states of the masks."""
        mask = Mask(causal=True, query_slots=places)
        return self.encoder(self._embedded_target(tokens, places), mask=mask, decode=slots)[:, -1]

    def _embedded_target(
        self, tokens: Int[Array, "N Q"], places: Int[Array, "N Q"]
    ) -> Float[Array, "N Q M"]:
        _, second = token_types("sequence_to_sequence", self.num_token_types)
        inputs = Inputs(
            tokens,
            positions=jnp.minimum(places, self.max_length - 1),
            token_types=jnp.full_like(tokens, second),
        )
        return self._embed(inputs, train=False)


# --------------------------------------------------------------------------------------------------
# Encoders of images and of sound: their inputs are no tokens, and they have no vocabulary.


class SignalEncoder(Encoder):
    """Images or sound (B, ...) float32 -> states (B, L, M), each of which sees the whole row.

    A family names in `modality` the field of `Inputs` that it reads.
    """

    vocab_size: ClassVar[int] = 0
    vocabulary = ()
    word_table = None
    max_length: ClassVar[int | None] = None

    def output(self) -> Output:
        raise UserError(f"a model of {self.modality} predicts no tokens")
