"""Speech recognition by connectionist temporal classification (Graves et al. 2006)."""

import dataclasses
from collections.abc import Iterable, Iterator
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer_jax.config import NonNegativeInt, PositiveInt, Share
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data import arguments
from transformer_jax.data.sources.text_files import matching_files, text_lines
from transformer_jax.data.speech import (
    BOUNDARY,
    ENGLISH,
    Masking,
    Spelling,
    TranscribedRows,
    Utterances,
)
from transformer_jax.families.wav2vec2 import ctc
from transformer_jax.families.wav2vec2.ctc import SpellingModel, Transcriber, Transcript
from transformer_jax.families.wav2vec2.speech import SpeechTask
from transformer_jax.inference.translating import ScoredOutputs, SplitOutputs
from transformer_jax.layers.embeddings import Head
from transformer_jax.pictures.progress import track
from transformer_jax.scores.texts import WordErrors

_READ_TOGETHER = 64  # utterances


@dataclasses.dataclass
class CTC(ScoredOutputs, SpeechTask):
    """A linear head predicts the characters of each frame (Baevski et al. 2020, section 3.3).

    The model is initialized from the run in `config.init_from`, if there is one. The loss of an
    utterance is the negative log-probability of its transcript, summed over all alignments. The
    group "encoder" of `config.optimizer.groups` has all parameters except the head. With the key
    `begin` of this group, the first updates train only the head.
    """

    takes_model = True
    heads = ("head",)

    characters: PositiveInt = 512  # most characters of a transcript; longer ones are not trained on
    # tokens in the order of their ids; tokens of several characters are special tokens
    vocabulary: tuple = ENGLISH
    word_delimiter: str = BOUNDARY  # the token of the vocabulary that separates words
    blank: int = 0  # id of the blank in the vocabulary
    head_dropout: Share = 0.0  # dropout before the head
    freeze_features: bool = True  # do not train the convolutions over the samples
    masked: Share = 0.5  # total length of the masked spans, as a share of an utterance's frames
    span: PositiveInt = 10  # frames of a masked span
    # total width of the masked spans of channels, as a share of all channels (SpecAugment)
    feature_mask: Share = 0.0
    feature_mask_span: PositiveInt = 64  # channels of a masked span
    # validation utterances transcribed at each evaluation; 0: none
    scored_utterances: NonNegativeInt = 200
    # order of the character n-gram language model for config.decode.beam above 1; 0: none
    lm_order: NonNegativeInt = 0
    # text files of the language model, one sentence per line; none: the training transcripts
    lm_files: str | None = None
    lm_weight: float = 0.5  # weight of the language model's log-probability in the beam search
    length_bonus: float = 0.0  # score that each character adds in the beam search

    def __post_init__(self):
        super().__post_init__()
        self.coefficients = {"ctc": 1.0}
        self.spelling.check()

    @cached_property
    def spelling(self) -> Spelling:
        return Spelling(tuple(self.vocabulary), self.blank, self.word_delimiter)

    def component(self, records):
        return TranscribedRows(
            records,
            self.spelling,
            seed=self.config.data.seed,
            samples=self.samples,
            characters=self.characters,
            windows=self.model.windows,
            masking=Masking(self.masked, self.span),
            channels=self.model.d_model,
            silence=Masking(self.feature_mask, self.feature_mask_span),
            normalize=self.model.normalize,
        )

    def rows(self):
        _ = self.measures  # a missing library is an error before training
        return super().rows()

    def batch_spec(self, row_shape: int):
        return self.spec_of_rows(
            {
                "labels": (self.characters,),
                "num_labels": (),
                "masked": (self.frames,),
                "feature_mask": (self.model.d_model,),
            }
        )

    def init(self, rng):
        head_key, encoder_key = jax.random.split(rng)
        sound, states = jnp.zeros((1, self.samples)), jnp.zeros((1, 1, self.model.d_model))
        return {
            **self.model.init(encoder_key, Inputs(sound=sound), method="hidden")["params"],
            "head": self._head.init(head_key, states)["params"],
        }

    @property
    def _head(self) -> Head:
        return Head(len(self.vocabulary), self.head_dropout)

    def group(self, path):
        if self.freeze_features and self.model.is_feature(path):
            return None
        if self.config.optimizer.groups and path[0] != "head":
            return "encoder"
        return ""

    def weights(self, batch):
        # The mean is over characters, so that long and short utterances weigh by their length.
        return {"ctc": batch["num_labels"].sum().astype(jnp.float32)}

    def loss(self, params, batch, context: Context) -> Loss:
        options = {}
        # Masking regularizes as dropout does, so that an evaluation hears the whole utterance.
        if context.train:
            options = dict(
                masked=batch["masked"], feature_mask=batch["feature_mask"], rng=context.rng
            )
        logits = self.logits(params, batch["sound"], batch["length"], **options)
        frames = self.model.num_frames(batch["length"])[:, None]
        counts = batch["num_labels"]
        # optax wants 1 where an array is padding, whereas our masks are 1 where it is filled.
        losses = optax.ctc_loss(
            logits,
            (jnp.arange(logits.shape[1]) >= frames).astype(jnp.float32),
            batch["labels"],
            (jnp.arange(self.characters) >= counts[:, None]).astype(jnp.float32),
            blank_id=self.blank,
        )
        # Rows without labels only pad the batch.
        total = jnp.where(counts > 0, losses, 0).sum()
        metrics = {
            "loss": (total, counts.sum(dtype=jnp.int32)),
            "filled": self.num_filled(batch),
        }
        return Loss({"ctc": total}, metrics)

    def logits(self, params, sound, lengths, *, rng=None, **hidden_parts) -> jax.Array:
        """Returns the logits of the tokens of each frame (B, L, V) float32.

        `rng` is the dropout key of training; None: no dropout. `hidden_parts` are further fields of
        `Inputs`.
        """
        return self._logits(params, Inputs(sound=sound, lengths=lengths, **hidden_parts), rng)

    def _logits(self, params, inputs: Inputs, rng=None, **options) -> jax.Array:
        """Returns the same; `options` are passed to the model's `hidden`."""
        # Two calls with the same key could draw equal dropout masks.
        keys = [None, None] if rng is None else jax.random.split(rng)
        head_rngs, encoder_rngs = (None if key is None else {"dropout": key} for key in keys)
        train = rng is not None
        hidden = self.model.apply(
            {"params": params}, inputs, train=train, method="hidden", rngs=encoder_rngs, **options
        )
        return self._head.apply({"params": params["head"]}, hidden, train=train, rngs=head_rngs)

    def _logits_without_padding(self, params, sound, lengths) -> jax.Array:
        """Returns the logits that each utterance has alone, however much padding its batch has."""
        inputs = Inputs(sound=sound, lengths=lengths)
        return self._logits(params, inputs, ignore_padding=True)

    def flops(self, row_shape: int = 0) -> float:
        return 3 * self.model.flops(self.samples, 0)

    @cached_property
    def transcriber(self) -> Transcriber:
        return Transcriber(
            logits=self._logits_without_padding,
            num_frames=self.model.num_frames,
            decoder=self._decoder,
            spell=self.spelling.decode,
            batch=self.config.decode.batch,
            mesh=self.config.mesh,
            normalize=self.model.normalize,
        )

    @property
    def _decoder(self):
        """Greedy decoding for config.decode.beam=1, else a prefix beam search."""
        if self.config.decode.beam == 1:
            return lambda log_probs: [ctc.greedy(log_probs, self.blank)]
        return ctc.PrefixBeam(
            beam=self.config.decode.beam,
            blank=self.blank,
            language_model=self._language_model if self.lm_order else None,
            lm_weight=self.lm_weight,
            length_bonus=self.length_bonus,
            boundary=self.spelling.boundary,
        )

    @property
    def _language_model(self) -> SpellingModel:
        if self.lm_files:
            files = matching_files("config.task.lm_files", self.lm_files)
            lines = (line for file in files for line in text_lines(file))
        else:
            lines = _transcripts(Utterances(self.source.records("train")))
        texts = [self.spelling.encode(line) for line in lines if line.strip()]
        return SpellingModel.count_texts(
            texts, self.lm_order, len(self.vocabulary), self.spelling.boundary
        )

    def transcribe(self, params, utterances: Iterable[np.ndarray]) -> Iterator[list[Transcript]]:
        """Yields the transcripts of each utterance, in order, the best transcript first.

        An utterance is samples (S,) at the model's rate: integers, which are divided by their full
        scale, or floats, which are taken as they are.
        """
        return self.transcriber(params, utterances)

    @cached_property
    def measures(self):
        return [WordErrors()]

    def evaluations(self):
        if not self.scored_utterances or self.source.fingerprint("valid") is None:
            return {}
        return {"valid": partial(self._scores, "valid", self.scored_utterances)}

    def _scores(self, split: str, most: int, params) -> dict[str, float]:
        transcribed = self._transcribed(params, self.source.records(split), most)
        return self.scored(transcribed.outputs, transcribed.references)

    def split_outputs(self, params, split):
        records = arguments.held_out(self.source.records, split, "files")
        return self._transcribed(params, records)

    def _transcribed(self, params, records, most: int | None = None) -> SplitOutputs:
        """Returns transcripts of the first utterances that have a reference transcript."""
        utterances = Utterances(records)
        numbers = np.flatnonzero(utterances.characters)[:most]
        sounds = (each.samples for each in _read(utterances, numbers))
        results = self.transcribe(params, track(sounds, "transcribing", len(numbers)))
        outputs = [transcripts[0].text for transcripts in results]
        texts = [self.spelling.words(each.text) for each in _read(utterances, numbers)]
        return SplitOutputs([str(number) for number in numbers], texts, outputs)

    def evaluate(self, params, split):
        """Returns the mean loss of a split, its error rates, and their confidence intervals.

        Raises UserError if the run has no such split.
        """
        means = super().evaluate(params, split)
        transcribed = self.split_outputs(params, split)
        scores = self.scored(transcribed.outputs, transcribed.references)
        intervals = self.intervals(transcribed.outputs, transcribed.references)
        return means | scores | {"intervals": intervals}


def _read(utterances: Utterances, numbers: np.ndarray):
    """Yields utterances, reading several at a time."""
    for first in range(0, len(numbers), _READ_TOGETHER):
        yield from utterances.read(numbers[first : first + _READ_TOGETHER])


def _transcripts(utterances: Utterances) -> Iterator[str]:
    return (each.text for each in _read(utterances, np.flatnonzero(utterances.characters)))
