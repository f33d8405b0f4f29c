"""Transcripts by connectionist temporal classification of frames (Graves et al. 2006)."""

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
from transformer_jax.data.speech import ENGLISH, Masking, Spelling, TranscribedRows, Utterances
from transformer_jax.inference import ctc
from transformer_jax.inference.ctc import SpellingModel, Transcriber, Transcript
from transformer_jax.inference.translating import Answering, Answers
from transformer_jax.layers.embeddings import Head
from transformer_jax.objectives.speech import SpeechTask
from transformer_jax.pictures.progress import track
from transformer_jax.scores.texts import WordErrors

_READ_TOGETHER = 64  # utterances


@dataclasses.dataclass
class CTC(Answering, SpeechTask):
    """A linear head gives the characters of each frame (Baevski et al. 2020, section 3.3).

    The model is that of the run in `config.init_from`; without one, a new model begins. The loss of
    an utterance is the negative logarithm of the sum over all paths of its transcript. The group
    "encoder" of `config.optimizer.groups` has all parameters but the head: with its key `begin`,
    the first updates train the head alone.
    """

    takes_model = True
    heads = ("head",)

    characters: PositiveInt = 512  # of a transcript; training leaves out utterances with more
    # tokens by number; "|" stands between words, and tokens of several characters are marks
    vocabulary: tuple = ENGLISH
    blank: int = 0  # number of the blank in the vocabulary
    head_dropout: Share = 0.0  # dropout before the head
    freeze_features: bool = True  # do not train the convolutions over the samples
    masked: Share = 0.5  # total length of the masked spans of frames over that of an utterance
    span: PositiveInt = 10  # frames of a masked span
    feature_mask: Share = (
        0.0  # total width of the spans of channels that are set to 0, over all channels
    )
    feature_mask_span: PositiveInt = 64  # channels of such a span
    # validation utterances transcribed at each evaluation; 0: none
    scored_utterances: NonNegativeInt = 200
    # characters of the n-grams of the language model for config.decode.beam above 1; 0: none
    lm_order: NonNegativeInt = 0
    # text files of the language model, a sentence a line; none: the transcripts of training
    lm_files: str | None = None
    lm_weight: float = 0.5  # factor of the language model's log-probability in the beam search
    length_bonus: float = 0.0  # what each character adds to the score in the beam search

    def __post_init__(self):
        super().__post_init__()
        self.coefficients = {"ctc": 1.0}
        self.spelling.check()

    @cached_property
    def spelling(self) -> Spelling:
        return Spelling(tuple(self.vocabulary), self.blank)

    # training

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
        return {"ctc": batch["num_labels"].sum().astype(jnp.float32)}

    def loss(self, params, batch, context: Context) -> Loss:
        options = {}
        if context.train:
            options = dict(
                masked=batch["masked"], feature_mask=batch["feature_mask"], rng=context.rng
            )
        logits = self.logits(params, batch["sound"], batch["length"], **options)
        frames = self.model.num_frames(batch["length"])[:, None]
        counts = batch["num_labels"]
        losses = optax.ctc_loss(
            logits,
            (jnp.arange(logits.shape[1]) >= frames).astype(jnp.float32),
            batch["labels"],
            (jnp.arange(self.characters) >= counts[:, None]).astype(jnp.float32),
            blank_id=self.blank,
        )
        total = jnp.where(counts > 0, losses, 0).sum()
        metrics = {
            "loss": (total, counts.sum(dtype=jnp.int32)),
            "filled": self.num_filled(batch),
        }
        return Loss({"ctc": total}, metrics)

    def logits(self, params, sound, lengths, *, rng=None, **hidden_parts) -> jax.Array:
        """Returns the logits of the tokens of each frame (B, L, V) float32.

        `rng` is the key of training's dropout. `hidden_parts` are further fields of `Inputs`.
        """
        keys = [None, None] if rng is None else jax.random.split(rng)
        of_head, of_encoder = (None if key is None else {"dropout": key} for key in keys)
        train = rng is not None
        hidden = self.model.apply(
            {"params": params},
            Inputs(sound=sound, lengths=lengths, **hidden_parts),
            train=train,
            method="hidden",
            rngs=of_encoder,
        )
        return self._head.apply({"params": params["head"]}, hidden, train=train, rngs=of_head)

    def flops(self, row_shape: int = 0) -> float:
        return 3 * self.model.flops(self.samples, 0)

    # use

    @cached_property
    def transcriber(self) -> Transcriber:
        return Transcriber(
            logits=self.logits,
            num_frames=self.model.num_frames,
            decoder=self._decoder,
            spell=self.spelling.decode,
            batch=self.config.decode.batch,
            mesh=self.config.mesh,
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
        """Yields the transcripts of samples (S,) int16 of 16 kHz each, in order, the best first."""
        return self.transcriber(params, utterances)

    # evaluation

    @cached_property
    def measures(self):
        return [WordErrors()]

    def evaluations(self):
        if not self.scored_utterances or self.source.fingerprint("valid") is None:
            return {}
        return {"valid": partial(self._scores, "valid", self.scored_utterances)}

    def _scores(self, split: str, most: int, params) -> dict[str, float]:
        answers = self._answers(params, self.source.records(split), most)
        return self.scored(answers.outputs, answers.references)

    def answers(self, params, split):
        records = arguments.held_out(self.source.records, split, "files")
        return self._answers(params, records)

    def _answers(self, params, records, most: int | None = None) -> Answers:
        """Returns the transcripts of the first utterances that have one."""
        utterances = Utterances(records)
        numbers = np.flatnonzero(utterances.characters)[:most]
        sounds = (each.samples for each in _read(utterances, numbers))
        results = self.transcribe(params, track(sounds, "transcribing", len(numbers)))
        outputs = [transcripts[0].text for transcripts in results]
        texts = [self.spelling.words(each.text) for each in _read(utterances, numbers)]
        return Answers([str(number) for number in numbers], texts, outputs)

    def evaluate(self, params, split):
        """Returns the mean loss of a split, its error rates, and their intervals.

        Raises UserError where the run has no such split.
        """
        means = super().evaluate(params, split)
        answers = self.answers(params, split)
        scores = self.scored(answers.outputs, answers.references)
        intervals = self.intervals(answers.outputs, answers.references)
        return means | scores | {"intervals": intervals}


def _read(utterances: Utterances, numbers: np.ndarray):
    """Yields utterances, some of which are read together."""
    for first in range(0, len(numbers), _READ_TOGETHER):
        yield from utterances.read(numbers[first : first + _READ_TOGETHER])


def _transcripts(utterances: Utterances) -> Iterator[str]:
    return (each.text for each in _read(utterances, np.flatnonzero(utterances.characters)))
