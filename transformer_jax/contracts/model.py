"""The contract of models: their inputs, kinds, decoding, and capabilities."""

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Num

from transformer_jax.config import PositiveInt, UserError
from transformer_jax.layers import activations, parameters
from transformer_jax.layers.blocks import for_decoding
from transformer_jax.layers.decoding import GrowingRows, Ring, Rows, SourceRows
from transformer_jax.layers.embeddings import Output, row_positions
from transformer_jax.layers.masks import Mask
from transformer_jax.layers.parameters import compute_dtype

# --------------------------------------------------------------------------------------------------
# What a model reads.
#
# The inputs are one tree instead of arguments, because a task fills the fields that its rows have,
# and a family reads those that it supports. A further field then changes no signature.


@flax.struct.dataclass
class Inputs:
    """The rows that a model reads, and what is known about each position. None: not given.

    A model reads one of `tokens`, `images` and `sound`, which its `modality` names, and those of
    the other fields that its family supports. A modality of another kind derives a class that adds
    its own field, and its models name this class in `reads`.

    Attributes:
      tokens: token ids; for a family that reads words by their characters, the character ids of
        each word.
      images: pixels, from 0 to 255.
      sound: audio samples.
      positions: positions within an example, from 0. None: 0, 1, ... in each row.
      segment_ids: ids from 1 that separate the examples of a packed row; 0 is padding. None: a row
        is one example.
      token_types: token type ids, such as 0 and 1 for the two texts of a pair. None: all are 0.
      ranks: a token attends to the tokens of its own rank and of lower ranks. None: to all.
      private: tokens to which no other token attends.
      global_positions: positions of the tokens with global attention, which attend to the whole row
        and to which all tokens attend; -1 is an unused entry.
      lengths: the number of audio samples in each row; the samples after them are padding. None:
        no row has padding.
      masked: the audio frames that are replaced by a learned vector.
      feature_mask: the channels of the frames that are set to 0, as in SpecAugment.
      visible: the indices of the image patches that are read, in this order. None: all.
      padding_last: whether each row is one example, followed by its padding, so that its segment
        ids are ones and then zeros. In bfloat16 and without dropout of its weights, attention on a
        GPU then skips the padding.
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
    padding_last: bool = flax.struct.field(pytree_node=False, default=False)

    @property
    def mask(self) -> Mask:
        """The attention mask: tokens of the same example, as far as their ranks allow."""
        return Mask(
            query_segments=self.segment_ids,
            key_segments=self.segment_ids,
            query_ranks=self.ranks,
            key_ranks=self.ranks,
            private_keys=self.private,
            padding_last=self.padding_last and self.segment_ids is not None,
        )


def takes_inputs(method: Callable) -> Callable:
    """Lets a method that takes `Inputs` also take arrays.

    `hidden(tokens, segment_ids=ids)` is short for `hidden(Inputs(tokens, segment_ids=ids))`. The
    first array is the field that the model's modality names. Other arguments are passed on
    unchanged.
    """

    @functools.wraps(method)
    def call(self, inputs, *others, **options):
        if not isinstance(inputs, Inputs):
            fields = self.reads.__dataclass_fields__
            given = {name: options.pop(name) for name in list(options) if name in fields}
            inputs = self.reads(**{self.modality: inputs}, **given)
        return method(self, inputs, *others, **options)

    return call


# --------------------------------------------------------------------------------------------------
# Decoding: `begin` reads the prompts, and `step` reads one more token of each hypothesis.
#
# Sampling, beam search and speculative decoding call these two methods and nothing else of a model,
# so that they work for any family and any decoding state.


class CausalDecoding:
    """Decoding for a Causal model with "cache" or "carry" in `can`."""

    def begin(
        self, params, prompts: Int[ArrayLike, "B L"], lengths: Int[ArrayLike, " B"], *, slots: int
    ) -> tuple[Float[Array, "B V"], Rows]:
        """Reads the prompts. Returns (logits of the next tokens (B, V), the decoding state).

        The first `lengths` (B,) tokens of each row of `prompts` (B, L) are the prompt, and the rest
        is padding. A KV cache gets room for `slots` tokens. The parameters must come from
        `for_decoding`.
        """
        batch, length = prompts.shape
        if "carry" in self.can:
            filled = jnp.arange(length) < lengths[:, None]
            carry = self.initial_carry(batch)
            hidden, cache = self._applied(params, prompts, carry, filled=filled, method="advance")
            slots = 0
        else:
            positions = jnp.broadcast_to(jnp.arange(length), prompts.shape)
            # The padding needs no mask: causal attention hides it from the prompt, and the tokens
            # that follow overwrite its slots before they are attended to.
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
            # A text that has filled all its slots has no next position. It may still be in the
            # batch, and a position out of range would give NaN.
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
    """Decoding for a SequenceToSequence model with "cache" in `can`."""

    def begin(
        self,
        params,
        prompts: Int[ArrayLike, "N 1"],
        encoder_output: Float[Array, "N S M"],
        segments: Int[ArrayLike, "N S"],
        *,
        beams: int,
    ) -> tuple[Float[Array, "N V"], Ring]:
        """Reads the first target tokens. Returns (logits (N, V), the decoding state).

        `prompts` (N, 1) are the first target tokens, `encoder_output` (N, S, M) belongs to the
        sources, and `segments` (N, S) is 1 for tokens of a source and 0 for padding. Each input has
        up to `beams` hypotheses. The parameters must come from `for_decoding`.
        """
        options = dict(segments=segments, slot=jnp.int32(0))
        positions = jnp.zeros_like(prompts)
        logits, new = self._cached(
            params, {}, prompts, positions, beams, encoder_output=encoder_output, **options
        )
        return logits[:, 0], Ring.started(new, segments, beams)

    def step(
        self, params, state: Ring, tokens: Int[ArrayLike, "N K"]
    ) -> tuple[Float[Array, "N K V"], Ring]:
        """Reads a token of each hypothesis (N, K). Returns (logits (N, K, V), the new state)."""
        state = state.opened()
        # An input that is finished may have no next position, and a position out of range would
        # give NaN.
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
    """Decoding for a SequenceToSequence model whose decoder has a recurrent state."""

    @abc.abstractmethod
    def source_and_state(
        self, encoder_output: Float[Array, "B S W"], segments: Int[ArrayLike, "B S"]
    ) -> tuple[dict[str, Array], Any]:
        """Returns arrays (B, S, ...) that all steps read, and the state before the first token.

        The state is a tree of arrays (B, S, ...), with the state of a source repeated at each of
        its positions.
        """

    @abc.abstractmethod
    def advanced(
        self, state: SourceRows, tokens: Int[ArrayLike, "N K"]
    ) -> tuple[Float[Array, "N K V"], Any]:
        """Returns the logits after one more token of each hypothesis, and the new state."""

    def begin(
        self,
        params,
        prompts: Int[ArrayLike, "N 1"],
        encoder_output: Float[Array, "N S M"],
        segments: Int[ArrayLike, "N S"],
        *,
        beams: int,
    ) -> tuple[Float[Array, "N V"], SourceRows]:
        """Reads the first target tokens, as in `SequenceDecoding.begin`."""
        source, state = self.apply(
            {"params": params}, encoder_output, segments, method="source_and_state"
        )
        # Each row holds one source here, so that its state is the same at all positions.
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
# The three kinds of model. Each family is of one kind, and declares its capabilities in `can`.
#
# Whatever uses a model works for all families of a kind, because it asks only for `kind` and `can`
# and calls the methods below. All models have the keys `vocab_size` and `d_model`.


# The capabilities that a family of models can declare in `can`. Programs ask for a capability
# rather than for the name of a family, so that they serve new families unchanged.
#   token_types: `hidden` reads token types. Their number is the key `num_token_types`.
#   pool: `pooled(hidden)` returns one vector per row (B, M).
#   fill: the logits at a position predict its own token, which is masked in the input.
#   next_sentence: `next_logits(hidden)` returns the logits of next-sentence prediction (B, 2).
#   detect: `detected(hidden)` returns the logits that each token was replaced (B, L). A generator,
#     which is a part of the model, replaces them: see families/electra.py.
#   global: `hidden` reads the positions of tokens with global attention, `global_positions` (B, N);
#     -1 is an unused entry. They attend to the whole row, and all tokens attend to them.
#   static: `vectors()` returns the vectors of the vocabulary (V, M). The embedding of a token,
#     layer 0, is its vector and does not depend on other tokens.
#   codes: `autoencoded(images)` reconstructs images, `codes(images)` returns the image token of
#     each patch (B, N), and `images_of(codes)` decodes image tokens to images uint8.
#   contact: `contact_logits(maps)` returns the logits of contacts (B, P, P) between the residues of
#     proteins, from corrected attention maps (B, P, P, layers * heads).
#   cooccur: `log_counts(first, second)` returns the logarithms of the co-occurrence counts of pairs
#     of words (B, N).
#   write: `encode`, `begin` and `step` generate text by appended masks, as in `UnifiedLM`.
#   attend: all layers have attention weights, in the stacks "encoder" and "decoder".
#   cache: `cached` reads tokens into a KV cache.
#   carry: `initial_carry` and `advance` read tokens into a state, as in `Recurrent`.
#   both_ways: `initial_carry` and `advance` read two texts, one of them backward: see
#     families/elmo.py.
#   permute: `permuted` predicts tokens in a permuted order, with a carry if the key
#     `memory_length` is not 0: see families/xlnet.py.
#
# METHODS lists the methods that a family with a capability must define.
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


# A number of positions beyond any length, to which one can still add a length within int32.
_UNLIMITED = 2**30
_ATTENTIONS = {
    "encoder": ("encoder",),
    "causal": ("decoder",),
    "sequence_to_sequence": ("cross", "encoder", "decoder"),
}


class Model(nn.Module, abc.ABC):
    """The methods that all families share.

    The comment above METHODS explains the capabilities in `can`.
    """

    kind: ClassVar[Literal["encoder", "causal", "sequence_to_sequence"]]
    can: ClassVar[frozenset[str]] = frozenset()
    # The content of one position of the inputs: a token if the shape is (), else an array.
    modality: ClassVar[str] = "tokens"  # the field of `reads` that holds the inputs
    reads: ClassVar[type[Inputs]] = Inputs
    unit_shape: ClassVar[tuple[int, ...]] = ()
    # The shape and dtype of an input of a few positions, with which parameters are initialized.
    example_shape: ClassVar[tuple[int, ...]] = (8,)
    example_dtype: ClassVar[str] = "int32"
    # Other families from whose runs a run may be initialized, each with the value that
    # `config.init_from` then has for a workdir, without the key "run":
    # {family: {prefix: {"part": ..., "layers": ...}}}.
    begins_with: ClassVar[Mapping[str, Mapping[str, Mapping[str, str]]]] = {}
    # Names of the tensors with one row per token of the vocabulary.
    vocabulary: ClassVar[tuple[str, ...]] = ("token_embed/embedding",)
    word_table: ClassVar[str | None] = "token_embed/embedding"  # None: no word embeddings
    # Parameters that only pre-training uses.
    heads: ClassVar[tuple[str, ...]] = ()
    # The largest number of positions. It is a config key in most families. None: any number.
    max_length: ClassVar[int | None]
    # The stacks of layers that decoding applies to one token at a time.
    decoding_stacks: ClassVar[tuple[str, ...]] = ("decoder",)
    # Whether the [CLS] of a row is its last token (Yang et al. 2019) instead of its first.
    cls_last: ClassVar[bool] = False
    # The dtype of the computation. It is a config key in most families.
    dtype: ClassVar[str] = "float32"
    # The first tokens of the vocabulary to which `limited_to` limits the predictions. None: all of
    # `vocab_size`. It is set where a run is used, and is no config key.
    num_pieces: int | None = None
    # Whether muP is right for the family. It is if each sum over a width is the product of a matrix
    # that declares its inputs, the scores of attention, or the output layer.
    has_mup: ClassVar[bool] = True
    # for muP: the d_model of the base, which `config.optimizer.base` sets; None: no muP
    base_width: PositiveInt | None = None

    @classmethod
    def missing(cls) -> list[str]:
        """Returns the methods that the kind and the capabilities require but the family lacks."""
        required = {name for word in cls.can for name in METHODS.get(word, ())}
        return sorted(cls.__abstractmethods__ | required - set(dir(cls)))

    def check(self) -> None:
        """Raises UserError for a wrong value of the family's own keys."""

    # Warm starts, by `config.init_from`. By default, tensors keep their names and shapes. A family
    # overrides these methods because an earlier run of another family or shape may lack a tensor,
    # or have, for instance, a shorter position table.

    @classmethod
    def origin(cls, name: str) -> str:
        """Returns the tensor that initializes a tensor which the earlier run lacks.

        The default is the tensor's own name.
        """
        return name

    @classmethod
    def origins_of_rows(cls, name: str, stored: int, wanted: int) -> Sequence[int] | None:
        """Returns the row of the stored tensor that initializes each row of a longer tensor.

        None if a tensor of `stored` rows cannot become one of `wanted` rows.
        """
        return None

    @classmethod
    def resize(
        cls, name: str, stored: tuple[int, ...], wanted: tuple[int, ...]
    ) -> Callable[[Any], Any] | None:
        """Returns the function that maps a stored array, such as a position table, to a new shape.

        None if the tensor cannot change its shape.
        """
        return None

    @property
    def num_states(self) -> int:
        """The number of arrays that `layers` returns: the embeddings, and the states per layer."""
        return self.num_layers + 1

    @property
    def layer_losses(self) -> dict[str, float]:
        """The factors of the losses that the layers sow in training, by name.

        A layer sows the sum over its rows by `self.sow("losses", name, value)`, and the loss is the
        mean over layers and rows. The tasks causal_lm and chat add it to their own.
        """
        return {}

    @nn.nowrap
    def reader(self, tokenizer: Any) -> Any:
        """Returns the tokenizer that splits a text into input units, by default `tokenizer`.

        Raises UserError for a kind of tokenizer that does not suit the model.
        """
        return tokenizer

    @abc.abstractmethod
    def hidden(self, *inputs: Inputs, train: bool = False) -> Float[Array, "B L M"]:
        """Returns the hidden states before the output layers."""

    @abc.abstractmethod
    def output(self) -> Output:
        """Returns the output layer: a `Projection`, or another output of layers/embeddings.py.

        Rows beyond `vocab_size` are padding of the vocabulary.
        """

    @abc.abstractmethod
    def flops(self, *sizes: int) -> float:
        """Returns the FLOPs of a forward pass over one row: two for each multiply-add.

        Formulas rather than XLA's cost analysis, because the latter counts the body of a scan over
        layers only once.
        """

    def scaled_output(self) -> Output:
        """Returns `output`, whose logits are divided by the growth of its width in muP.

        Losses and predictions use this output (Yang et al. 2022, table 8).
        """
        return self.multiplied(self.output())

    @nn.nowrap
    def multiplied(self, output: Output) -> Output:
        """Returns an output whose logits are divided by the growth of its width in muP."""
        # A factorized table (Lan et al. 2020) has a width of its own, which does not grow.
        table = getattr(output, "table", None)
        if self.base_width is None or table is None or table.shape[-1] != self.d_model:
            return output
        # A bias has a finite width, and so no multiplier.
        return output._replace(table=table * (self.base_width / self.d_model))

    @property
    def reference_width(self) -> int:
        """The d_model from which a family computes a factor of embeddings or hidden states.

        In muP, it is the base's, because activations must not grow with the width.
        """
        return self.d_model if self.base_width is None else self.base_width

    def transformed(self, hidden: Float[Array, "*B M"]) -> Float[Array, "*B E"]:
        """Applies the layers between the hidden states (..., M) and the output layer (..., E)."""
        return hidden

    def logits(self, hidden: Float[Array, "*B M"]) -> Float[Array, "*B V"]:
        """Projects hidden states (..., M) to logits (..., V) float32, of `num_outputs` tokens."""
        logits = self.scaled_output().first(self.num_outputs).logits(self.transformed(hidden))
        return activations.named(self, "logits", logits)

    @nn.nowrap
    def limited_to(self, tokenizer: Any, data: Any = None) -> "Model":
        """Returns this model, whose predictions are limited to the tokens of a tokenizer.

        A vocabulary often has more entries than its tokenizer, which pad it to a round number. No
        training text has these ids, and no text consists of them, but softmax gives them some
        probability. Everything that writes tokens takes the limited model: samples, beams, rollouts
        with their log-probabilities, and filled masks. The training loss and the log-likelihoods of
        given texts are still over the whole vocabulary, as they are in other libraries. So is what
        a run with a published tokenizer writes (`tokenizer_files` of `data`, its config.data),
        because converted models then write the same texts as in other libraries.
        """
        is_published = data is not None and data.tokenizer_files
        if is_published or tokenizer.vocab_size >= self.vocab_size:
            return self
        return self.clone(num_pieces=tokenizer.vocab_size)

    @property
    def num_outputs(self) -> int:
        """The number of tokens that are predicted, the size of the logits."""
        return self.vocab_size if self.num_pieces is None else self.num_pieces

    def limited_output(self) -> Output:
        """Returns `scaled_output`, in which the tokens beyond `num_pieces` are padding.

        The number of rows remains, because the mesh must divide it.
        """
        output = self.scaled_output()
        return output if self.num_pieces is None else output.limited(self.num_pieces)

    @nn.nowrap
    def group(self, path: tuple[str, ...]) -> str:
        """Returns the optimizer group of the parameter at this path, for `config.optimizer.groups`.

        "" is `config.optimizer` itself, to which all parameters belong if a config has no groups.
        """
        return ""

    @nn.nowrap
    def depth(self, path: tuple[str, ...]) -> int | None:
        """Returns the depth of a parameter's layer, for `config.optimizer.layer_decay`.

        The lowest layer has depth 1, embeddings 0, and parameters above all layers None. The method
        is not called for the layers of a stack, whose depth is their order in the stack.
        """
        is_input = "embed" in path[0] and path[0] != "output_embed"
        return 0 if is_input else None

    def num_padding(self) -> int:
        """Returns the number of parameters that only pad the vocabulary.

        They are not counted in the model's size.
        """
        return 0

    @property
    def attentions(self) -> tuple[str, ...]:
        """The kinds of attention whose weights can be read: "encoder", "decoder", "cross"."""
        return _ATTENTIONS[self.kind] if "attend" in self.can else ()

    @property
    def window(self) -> int:
        """The largest number of positions; a number beyond any length if there is no limit."""
        return _UNLIMITED if self.max_length is None else self.max_length

    @nn.nowrap
    def for_decoding(self, params):
        """Returns the parameters in the form in which decoding is fastest."""
        return for_decoding(params, compute_dtype(self.dtype), self.decoding_stacks)


class Encoder(Model):
    """Tokens (B, L) -> hidden states (B, L, M), each of which depends on the whole row."""

    kind = "encoder"

    @abc.abstractmethod
    def hidden(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L M"]:
        """Returns the hidden states of the last layer (B, L, M)."""

    @abc.abstractmethod
    def layers(self, inputs: Inputs) -> Float[Array, "N B L M"]:
        """Returns the embeddings and the hidden states of all layers (layers + 1, B, L, M)."""

    @abc.abstractmethod
    def flops(self, length: int, predictions: int) -> float:
        """Returns the FLOPs of a forward pass over one row.

        `predictions` is the number of positions that the output layer predicts.
        """


class Causal(CausalDecoding, Model):
    """Tokens (B, L) -> hidden states (B, L, M), each of which depends on the tokens up to its own.

    To generate text, a family needs a KV cache or a recurrent state. It then derives from `Cached`
    or `Recurrent`.
    """

    kind = "causal"
    num_states = 1

    @takes_inputs
    def layers(self, inputs: Inputs) -> tuple[Float[Array, "B L M"]]:
        """Returns the hidden states of the last layer."""
        return (self.hidden(inputs),)

    @takes_inputs
    def __call__(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L V"]:
        return self.logits(self.hidden(inputs, train=train))

    @abc.abstractmethod
    def hidden(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L M"]:
        """Returns the hidden states before the output projection (B, L, M)."""

    @abc.abstractmethod
    def flops(self, length: int, predictions: int | None = None) -> float:
        """Returns the FLOPs of a forward pass over one row with `predictions` predicted positions.

        None: all positions are predicted.
        """


class SequenceToSequence(SequenceDecoding, Model):
    """Source (B, S) and target (B, T) -> hidden states (B, T, M) of the target tokens.

    The inherited `begin` and `step` are for a family with "cache" in `can`. Such a family defines
    `cached(target, positions, slots, *, encoder_output=None, segments, slot, ancestors=None)`,
    which reads tokens (N, K) into the collection "cache" from `slot` () on, and returns their
    hidden states (N, K, M). A new cache has `slots` slots. Only the first call has an
    `encoder_output`, whose keys and values are then kept in the collection "cross_cache". With
    `ancestors` (N, K, P), the K tokens of an input are the hypotheses of one beam search: in each
    group of K slots, a token attends to the slot of the hypothesis from which it descends.

    Any other family defines `begin` and `step` with a decoding state of its own
    (layers/decoding.py).
    """

    kind = "sequence_to_sequence"
    # It is a config key in some families. None: source and target share a vocabulary.
    source_vocab_size: ClassVar[int | None] = None
    num_states = 2
    # The width of the encoder's hidden states, which come first in the encoder output; None: the
    # whole encoder output.
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
        """Returns the decoder's hidden states before the output projection (B, T, M)."""
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
        """Returns the embeddings of source tokens, and the encoder's last hidden states."""
        encoder_output = self.encode(source)
        return self.embedded(source.tokens), encoder_output[..., : self.source_width]

    @abc.abstractmethod
    def encode(self, source: Inputs, *, train: bool = False) -> Float[Array, "B S W"]:
        """Returns the encoder output (B, S, W) of source tokens (B, S)."""

    @abc.abstractmethod
    def decode(
        self,
        target: Inputs,
        encoder_output: Float[Array, "B S W"],
        *,
        source_segment_ids: Int[ArrayLike, "B S"] | None = None,
        train: bool = False,
    ) -> Float[Array, "B T M"]:
        """Returns the hidden states (B, T, M) of target tokens (B, T), given an encoder output."""

    @abc.abstractmethod
    def flops(
        self, source_length: int, target_length: int, predictions: int | None = None
    ) -> float:
        """Returns the FLOPs of a forward pass over one row with `predictions` predicted positions.

        None: all positions of the target are predicted.
        """


KINDS = (Encoder, Causal, SequenceToSequence)


def check_class(cls: type, file: str) -> None:
    """Raises UserError for a class that has no kind or lacks a method of its kind."""
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
# Encoder-decoders whose layers all have attention, with a KV cache in decoding.
#
# The masks are made here, so that training and decoding hide the same tokens in every family.


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
        """Returns the encoder output of source tokens at `positions`; None: 0, 1, ..."""

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
        """Returns the hidden states of target tokens at `positions`, before the output projection.

        `decode` is the number of slots in the collection "cache"; 0: no cache is used.
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
        mask = target.mask.replace(causal=True)
        cross_mask = Mask(query_segments=target.segment_ids, key_segments=source_segment_ids)
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
        # The slots of a beam search form a ring, in another order than the tokens. The
        # ancestors alone tell what a token may see.
        mask = Mask(causal=ancestors is None, query_slots=slot, ancestors=ancestors)
        cross_mask = Mask(key_segments=segments)
        return self.decoded(
            target, positions, encoder_output, mask=mask, cross_mask=cross_mask, decode=slots
        )

    def layer_sizes(self) -> parameters.LayerSizes:
        """Returns the sizes of a layer, from which its FLOPs are computed."""
        return parameters.LayerSizes.of(self)

    def flops(
        self, source_length: int, target_length: int, predictions: int | None = None
    ) -> float:
        """Returns the FLOPs of a forward pass over one row: two for each multiply-add.

        `predictions` is the number of predicted positions; None: all positions of the target.
        Causal attention counts only the pairs that it computes, about half of the square. Padding
        is counted; normalization, softmax and embedding look-ups are not.
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
# The two kinds of decoding state of causal models: a KV cache, or a recurrent state.
#
# They are separate contracts, because a KV cache grows with the text and needs a number of slots,
# whereas a recurrent state has a fixed size.


class Cached(Causal):
    """A causal model with a KV cache. It defines `decoded` and the key `max_length`."""

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
        """Returns the hidden states of tokens at `positions`, before the output projection.

        `decode` is the number of slots in the collection "cache"; 0: no cache is used.
        """

    @takes_inputs
    def hidden(self, inputs: Inputs, *, train: bool = False) -> Float[Array, "B L M"]:
        positions = inputs.positions
        if positions is None:
            positions = row_positions(inputs.tokens, self.max_length)
        mask = inputs.mask.replace(causal=True)
        return self.decoded(inputs.tokens, positions, mask=mask, train=train)

    def cached(
        self, tokens: Int[ArrayLike, "B L"], positions: Int[ArrayLike, "B L"], slots: int
    ) -> Float[Array, "B L M"]:
        """Returns the hidden states of tokens, and writes them to a cache with `slots` slots.

        A token at position p is written to slot p. Raises UserError if there are too few or too
        many slots.
        """
        if not tokens.shape[1] <= slots <= self.max_length:
            raise UserError(
                f"slots={slots}: must be at least the number of tokens in a row, "
                f"{tokens.shape[1]}, and at most config.model.max_length={self.max_length}"
            )
        mask = Mask(causal=True, query_slots=positions)
        return self.decoded(tokens, positions, mask=mask, decode=slots)


class Recurrent(Causal):
    """A causal model that reads a row of any length into a state of constant size.

    A family defines two methods. `initial_carry(rows)` returns the state before the first token, a
    tree of arrays (rows, ...). `advance(tokens, carry, *, restarts=None, filled=None, train=False)`
    reads tokens (B, L) and returns (hidden states (B, L, M), carry). Where `restarts` (B, L) is 1,
    a new document starts, so the state is reset before that token. Where `filled` (B, L) is 0, the
    token is padding and leaves the state unchanged.
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
        # The state is reset where the segment id changes, so that the examples of a packed row are
        # independent, as they are under the mask of a model with attention.
        carry = self.initial_carry(len(inputs.tokens))
        return self.advance(inputs.tokens, carry, restarts=restarts, filled=filled, train=train)[0]


# --------------------------------------------------------------------------------------------------
# Encoders that generate text: a mask after the text is filled, then the next (Dong et al. 2019).
#
# A mask asks for the next token, because an encoder predicts only tokens that it does not see.

# The token types of the first and the second text of a row, by objective, as in the published code.
TOKEN_TYPES = {
    "bidirectional": (0, 1),
    "sequence_to_sequence": (4, 5),
    "left_to_right": (2, 2),
    "right_to_left": (3, 3),
}
_NUM_TOKEN_TYPES = 6


def token_types(objective: str, num_token_types: int) -> tuple[int, int]:
    """Returns the token types of the first and the second text for an objective.

    A model with fewer than six token types does not distinguish objectives.
    """
    types = (0, 1) if num_token_types < _NUM_TOKEN_TYPES else TOKEN_TYPES[objective]
    first, second = (min(number, num_token_types - 1) for number in types)
    return first, second


class UnifiedLM(Encoder):
    """An encoder that also generates the target of a source (Dong et al. 2019, sections 2.3, 2.5).

    Source and target are one row. A source token attends to the source, and a target token attends
    to the source and to the target up to its own position. The hidden state of a mask that is
    appended to them predicts the next token. A family defines `_embed`, the stack `encoder`, and a
    `hidden` that supports `ranks` and `private` in its inputs.
    """

    can = frozenset({"attend", "fill", "write"})
    decoding_stacks = ("encoder",)

    @abc.abstractmethod
    def _embed(self, inputs: Inputs, *, train: bool) -> Float[Array, "B L M"]:
        """Returns the inputs of the first layer (B, L, M)."""

    @takes_inputs
    def encode(self, source: Inputs, *, train: bool = False) -> Float[Array, "B S M"]:
        """Returns the embeddings of sources.

        The layers run only in `begin`, where the masks are known and the KV cache is filled.
        """
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
        """Reads the sources. Returns (logits of the first target tokens, the decoding state).

        `prompts` are mask tokens, `encoder_output` comes from `encode`, and `segments` is 1 for
        tokens of a source and 0 for the padding after them. The parameters must come from
        `for_decoding`. `beams` is the number of tokens per input in `step`.
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
        # A token is written over the mask that predicted it, because the tokens that follow must
        # attend to the token and not to the mask.
        positions = state.lengths.reshape(-1, 1) + jnp.arange(2)
        # An input that is finished may have no next slot, but stays in the batch until the others
        # are finished.
        positions = jnp.minimum(positions, state.slots - 1)
        logits, new = self._written(params, cache, read, positions, state.slots, method="_append")
        state = state.replace(cache=state.cache | new, lengths=state.lengths + 1)
        return logits.reshape(*tokens.shape, -1), state

    @nn.nowrap
    def _written(self, params, cache: dict, *arguments, method: str):
        """Returns (the logits of the hidden states of `method`, the collection "cache")."""
        variables = {"params": params}
        states, new = self.apply(variables | cache, *arguments, method=method, mutable=["cache"])
        return self.apply(variables, states, method="logits"), new

    def _read(
        self,
        masks: Int[Array, "N 1"],
        encoder_output: Float[Array, "N S M"],
        lengths: Int[Array, " N"],
    ) -> Float[Array, "N M"]:
        """Reads embedded sources, each with a mask after it. Returns the masks' hidden states."""
        rows, positions = jnp.arange(len(encoder_output)), jnp.arange(encoder_output.shape[1] + 1)
        x = jnp.pad(encoder_output, ((0, 0), (0, 1), (0, 0)))
        # The mask follows the last token of its own source and replaces padding there, because
        # target tokens must be next to the source whatever the padded length.
        x = x.at[rows, lengths].set(self._embedded_target(masks, lengths[:, None])[:, 0])
        slots = jnp.broadcast_to(positions, (len(rows), len(positions)))
        mask = Mask(causal=True, prefix=lengths, query_slots=slots)
        return self.encoder(x, mask=mask, decode=len(positions))[rows, lengths]

    def _append(
        self, tokens: Int[Array, "N Q"], positions: Int[Array, "N Q"], slots: int
    ) -> Float[Array, "N M"]:
        """Reads target tokens and a mask at `positions`. Returns the masks' hidden states."""
        mask = Mask(causal=True, query_slots=positions)
        x = self._embedded_target(tokens, positions)
        return self.encoder(x, mask=mask, decode=slots)[:, -1]

    def _embedded_target(
        self, tokens: Int[Array, "N Q"], positions: Int[Array, "N Q"]
    ) -> Float[Array, "N Q M"]:
        """Returns the embeddings of target tokens, with the token type of the second text."""
        _, second = token_types("sequence_to_sequence", self.num_token_types)
        inputs = Inputs(
            tokens,
            # A finished hypothesis may be beyond the last position, whose embedding would be NaN.
            positions=jnp.minimum(positions, self.max_length - 1),
            token_types=jnp.full_like(tokens, second),
        )
        return self._embed(inputs, train=False)


# --------------------------------------------------------------------------------------------------
# Encoders of images and of audio, whose inputs are not tokens and which have no vocabulary.
#
# They are encoders, so that whatever uses hidden states, such as a classifier, serves them as well.


class SignalEncoder(Encoder):
    """Images or audio (B, ...) float32 -> hidden states (B, L, M) that depend on the whole row.

    A family sets `modality` to the field of `Inputs`, or of the class in `reads`, that it reads.
    """

    vocab_size: ClassVar[int] = 0
    vocabulary = ()
    word_table = None
    max_length: ClassVar[int | None] = None

    def output(self) -> Output:
        raise UserError(f"a model of {self.modality} predicts no tokens")
