"""BERT's pre-training: masked tokens and, unless rows are single texts, whether the second text
follows the first; and filling masks.
"""

import dataclasses
import itertools
import math
import types
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax import metrics
from transformer_jax.config import UserError, build_model
from transformer_jax.data import masking, rows, sentence_pairs, tokenizers, windows
from transformer_jax.data.sources import documents
from transformer_jax.data.sources import pairs as sources
from transformer_jax.inference.filling import Filling, Reader
from transformer_jax.layers.attention import weights_in
from transformer_jax.losses import cross_entropy, label_nll
from transformer_jax.pictures.attended import Attended, Side, between
from transformer_jax.pictures.progress import track

# rows of an evaluation at least: a small text is gone through several times, with other pairs and
# masks
_EVALUATED = 2_000


@dataclasses.dataclass
class MaskedLM:
    """The objectives of Devlin et al. 2018, section 3.1. See tasks/task.py for the methods'
    contracts.

    `tokenizer_folder`: where a run has left its tokenizer; None: read or train what `config.data`
    says.
    """

    config: ConfigDict
    tokenizer_folder: Path | None
    # (share of config.train.num_steps, tokens of a row, most predictions of a row), one after the
    # other
    phases: tuple = ((1.0, 128, 20),)
    # weight of the second task; 0: there is none, and rows are windows of the text, not pairs (Liu
    # et al. 2019)
    next_sentence: float = 1.0
    whole_words: bool = False  # mask all pieces of a word or none

    attentions = ("encoder",)  # kinds that can be looked at

    def __post_init__(self):
        self.model = build_model(self.config)
        self.coefficients = (
            {"mlm": 1.0, "nsp": self.next_sentence} if self.next_sentence else {"mlm": 1.0}
        )
        if not 0 <= self.next_sentence:
            raise UserError(
                f"config.task.next_sentence={self.next_sentence}: a weight is at least 0"
            )
        if self.next_sentence and self.model.num_token_types < 2:
            raise UserError(
                f"config.model.num_token_types={self.model.num_token_types}: pairs of "
                "texts need 2; config.task.next_sentence=0 trains on single texts"
            )
        if self.config.train.first_batch:
            raise UserError(
                f"config.train.first_batch={self.config.train.first_batch}: the batch of masked language modelling does not grow"
            )
        for phase in self.phases or [()]:
            if not self._is_phase(phase):
                raise UserError(
                    f"config.task.phases: {phase} is not (share of the updates, length from 8 to config.model.max_length={self.model.max_length}, most predictions), as in ((1.0,128,20),)"
                )
        if abs(sum(share for share, _, _ in self.phases) - 1) > 1e-6:
            raise UserError(
                f"config.task.phases={self.phases}: the shares of the updates must add up to 1"
            )
        self.num_phases = len(self.phases)

    def _is_phase(self, phase) -> bool:
        if not (
            isinstance(phase, tuple)
            and len(phase) == 3
            and type(phase[0]) in (int, float)
            and type(phase[1]) is type(phase[2]) is int
        ):
            return False
        share, length, most = phase
        return 0 < share <= 1 and 8 <= length <= self.model.max_length and 1 <= most <= length

    # data

    @cached_property
    def tokenizer(self) -> tokenizers.WordPiece:
        found = tokenizers.of_run(
            self.tokenizer_folder,
            self.config.data,
            lambda: self._text("train"),
            self.model.vocab_size,
        )
        if not isinstance(found, tokenizers.WordPiece):
            raise UserError(
                f"config.data.tokenizer={self.config.data.tokenizer}: masked language modelling needs wordpiece"
            )
        return found

    def _text(self, split: str):
        found = documents.documents(self.config.data, split)
        if found is None and split == "train":
            raise UserError("config.data names no training text")
        return found

    def _tokenised(self, split: str):
        make = sentence_pairs.tokenised if self.next_sentence else windows.tokenised
        return make(self._text(split), self.config.data, self.tokenizer, split)

    def _component(self, stored, split: str, phase: int):
        """The `_tokenised` rows of a split as a phase has them; the randomness of the others' is
        apart from that of training.
        """
        _, length, most = self.phases[phase]
        tokenizer, seed = self.tokenizer, self.config.data.seed
        mask = masking.Masking(
            tokenizer.mask_id, tokenizer.special, tokenizer.continues, most, self.whole_words
        )
        key = (seed, phase, ("train", "valid", "test").index(split))
        if self.next_sentence:
            return sentence_pairs.SentencePairs(stored, length, mask, key)
        return sentence_pairs.MaskedWindows(
            stored, length, mask, key, (tokenizer.cls_id, tokenizer.sep_id)
        )

    @property
    def phase_steps(self) -> list[int]:
        """Updates of each phase."""
        ends = [
            round(share * self.config.train.num_steps)
            for share in itertools.accumulate(share for share, _, _ in self.phases)
        ]
        return [end - begin for begin, end in zip([0, *ends], ends)]

    @cached_property
    def _rows(self) -> types.SimpleNamespace:
        train, last, stored = self.config.train, self.num_phases - 1, self._tokenised("train")
        phases = [
            rows.Phase(
                [self._component(stored, "train", phase)],
                train.batch,
                None if phase == last else count,
            )
            for phase, count in enumerate(self.phase_steps)
        ]
        valid = {"valid": self._evaluated("valid")} if self._text("valid") else {}
        return types.SimpleNamespace(
            train=rows.TrainRows(phases, self.config.data.seed), eval=valid
        )

    def _evaluated(self, split: str) -> rows.EvalRows:
        component = self._component(self._tokenised(split), split, self.num_phases - 1)
        return rows.EvalRows(component, math.ceil(_EVALUATED / len(component)))

    def rows(self):
        return self._rows

    def fingerprint(self) -> dict:
        """What the run's data and tokenizer are, by content."""
        return {
            "train": self._text("train").fingerprint(),
            "tokenizer": self.tokenizer.fingerprint(),
        }

    # training

    def batch_spec(self, phase: int):
        _, length, most = self.phases[phase]
        shapes = dict.fromkeys(("tokens", "token_types", "segment_ids"), (length,)) | {
            f"masked_{what}": (most,) for what in ("positions", "labels", "weights")
        }
        shapes |= {"follows": ()} if self.next_sentence else {}
        return {
            name: jax.ShapeDtypeStruct((self.config.train.batch, *shape), jnp.int32)
            for name, shape in shapes.items()
        }

    def init(self, rng):
        return self.model.init(rng, jnp.zeros((1, 8), jnp.int32))["params"]

    def weights(self, batch):
        examples = batch["segment_ids"].max(axis=-1).sum()  # rows that are no padding
        return {"mlm": batch["masked_weights"].sum().astype(jnp.float32)} | (
            {"nsp": examples.astype(jnp.float32)} if self.next_sentence else {}
        )

    def loss(self, params, batch, rng, *, train):
        apply = partial(self.model.apply, {"params": params})
        hidden = apply(
            batch["tokens"],
            batch["token_types"],
            None,
            batch["segment_ids"],
            train=train,
            method="hidden",
            rngs={"dropout": rng} if train else None,
        )
        # they alone meet the vocabulary
        asked = jnp.take_along_axis(hidden, batch["masked_positions"][..., None], axis=1)
        weights, filled = batch["masked_weights"], batch["segment_ids"] > 0
        mlm, _, right = cross_entropy(
            apply(asked, method="transformed"),
            *apply(method="output"),
            batch["masked_labels"],
            weights.astype(jnp.float32),
        )
        count = weights.sum(dtype=jnp.int32)
        found = {
            "loss": (mlm, count),
            "accuracy": (right, count),
            "filled": (filled.sum(dtype=jnp.int32), jnp.int32(filled.size)),
        }
        if not self.next_sentence:
            return {"mlm": mlm}, found
        logits, there, label = (
            apply(hidden, method="next_logits"),
            filled[:, 0],
            1 - batch["follows"],
        )
        nsp, examples = jnp.sum(label_nll(logits, label) * there), there.sum(dtype=jnp.int32)
        right = jnp.sum((logits.argmax(axis=-1) == label) & there, dtype=jnp.float32)
        return {"mlm": mlm, "nsp": nsp}, found | {
            "nsp_loss": (nsp, examples),
            "nsp_accuracy": (right, examples),
        }

    def trainable(self, path) -> bool:
        return self.next_sentence > 0 or path[0] not in ("pooler", "nsp")

    def derived(self, name, means):
        return {"perplexity": math.exp(min(means["loss"], 700.0))}

    def evaluations(self):
        return {}

    def flops(self, phase: int = 0) -> float:
        _, length, most = self.phases[phase]
        return 3 * self.model.flops(length, most)  # a backward pass costs two forward ones

    def positions(self, phase: int = 0) -> int:
        return self.phases[phase][1]

    # use

    def evaluate(self, params, split: str) -> dict:
        """Loss and accuracy of masked tokens and of following texts over a whole split, as its rows
        are in the last phase, and the accuracy of always naming the most frequent label. A split of
        fewer than 2,000 rows is gone through several times, with other pairs and masks.

        Raises UserError where the run's data has no such split.
        """
        sources.check_evaluated(split)
        if self._text(split) is None:
            raise UserError(
                f"--set={split}: this run names no such text; give --config.data.{split}_files"
            )
        found, batch = self._evaluated(split), self.config.decode.batch
        step = jax.jit(lambda params, batch: self.loss(params, batch, None, train=False)[1])
        sums, labels = [], np.zeros(self.model.vocab_size, np.int64)
        for number in track(
            range(found.num_batches(batch)), "evaluating (batches)", found.num_batches(batch)
        ):
            read = found.batch(number, range(batch), batch)
            labels += np.bincount(
                read["masked_labels"][read["masked_weights"] > 0], minlength=len(labels)
            )
            sums.append(jax.device_get(step(params, read)))
        means = metrics.means(jax.tree.map(lambda *x: np.sum(x, dtype=np.float64), *sums))
        means.pop("filled")
        return {
            **means,
            **self.derived(split, means),
            "most_frequent": float(labels.max() / labels.sum()),
            "rows": len(found),
            "masked": int(labels.sum()),
        }

    def fill(
        self, params, texts: Iterable[str], top_k: int = 5, *, long: str = "split"
    ) -> Iterator[list[list[Filling]]]:
        """The `top_k` likeliest words for each [MASK] of each text; an empty text has none.

        `long` decides about a text longer than `config.model.max_length`: "split" reads its
        sentences one by one, a longer sentence in parts, "skip" fills nothing, "refuse" raises
        UserError. A warning at the end names the numbers of these texts. Raises UserError for a
        text without [MASK].
        """
        return self._reader.fill(params, sources.several(texts), top_k, long)

    def features(
        self,
        params,
        texts: Iterable[str],
        layers: tuple[int, ...] = (-1,),
        *,
        long: str = "truncate",
    ) -> Iterator[tuple[list[str], np.ndarray]]:
        """The pieces of each text, and their hidden states (layers, N, M) float32.

        Layer 0 is the embeddings, -1 the last. [CLS] and [SEP] are among the pieces; an empty text
        has them alone. `long` decides about a text longer than `config.model.max_length`:
        "truncate" cuts it, "skip" gives no pieces (N = 0), "refuse" raises UserError. A warning at
        the end names the numbers of these texts. Raises UserError for a layer that does not exist.
        """
        return self._reader.features(params, sources.several(texts), layers, long)

    @property
    def _reader(self) -> Reader:
        return Reader(self.model, self.tokenizer, self.config.decode.batch)

    def attention(self, params, text: str, *, pieces: bool = False) -> Attended:
        """What each word of a text, or each of its `pieces`, attends to; [CLS], [SEP] and any
        [MASK] among them.

        Raises UserError for a text longer than `config.model.max_length`.
        """
        ids = [self.tokenizer.cls_id, *self.tokenizer.encode_masked(text), self.tokenizer.sep_id]
        if len(ids) > self.model.max_length:
            raise UserError(
                f"{len(ids)} tokens, at most config.model.max_length={self.model.max_length} can be read"
            )
        side = Side.of(self.tokenizer, ids, pieces)
        return between(weights_in(self.model, params, "encoder", jnp.array([ids])), side, side)
