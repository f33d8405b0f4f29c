"""Image classification, from scratch or on a pre-trained model (Dosovitskiy et al. 2020)."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from transformer_jax import pictures
from transformer_jax.config import Fraction, NonNegativeFloat, UserError
from transformer_jax.contracts.model import Inputs
from transformer_jax.contracts.task import Context, Loss
from transformer_jax.data import arguments, rows, store
from transformer_jax.data.images import FileRows, LabelledRows, known_labels
from transformer_jax.distributed import hosts
from transformer_jax.distributed.sharding import Placement, gathered, split_rows
from transformer_jax.finetuning.predictions import Prediction
from transformer_jax.inference.batching import chunks
from transformer_jax.layers.embeddings import Head
from transformer_jax.losses import label_nll
from transformer_jax.objectives.images import ImageTask
from transformer_jax.pictures.progress import track
from transformer_jax.scores import predictions as scores

_EVALUATION = Context()
_FEW_CLASSES = 100  # The size of a confusion matrix is their square.


@dataclasses.dataclass
class ImageClassification(ImageTask):
    """A class for each image, by a linear head whose kernel is initialized with zeros.

    With config.init_from, the model is initialized from an earlier run, such as one of
    masked_patches. Its position embeddings are interpolated if config.model.image_size differs.
    """

    # all classes, in the order of the head; (): the training images' classes, sorted
    labels: tuple = ()
    label_smoothing: Fraction = 0.0  # share of the probability that is spread over all classes
    # mix each training image with another one, in a ratio drawn from Beta(mixup, mixup); 0: off
    mixup: NonNegativeFloat = 0.0
    # a layer with tanh before the head, as in the paper's pre-training
    hidden_head: bool = False
    head_dropout: Fraction = 0.0  # dropout before the head
    frozen: bool = False  # train only the head

    takes_model = True
    heads = ("head",)

    def __post_init__(self):
        super().__post_init__()
        if "pool" not in self.model.can:
            raise UserError(
                f"config.model.name={self.config.model.name!r}: has no pooled output; take "
                "a model that has, such as vit"
            )

    @cached_property
    def names(self) -> list[str]:
        """The classes in the order of the head's outputs."""
        names = [str(label) for label in self.labels] or [*self._names_of("train")]
        if len(names) < 2:
            raise UserError(
                f"config.data.train_files: only one class, {names[0]!r}; a classification needs two"
            )
        return names

    def _names_of(self, split: str) -> tuple[str, ...]:
        """Returns the names of the labels of a split's records."""
        if names := self.source.label_names(split):
            return names
        raise UserError(
            f"config.data.{split}_files: images without labels; put the images of each class into "
            "a folder, or store an array 'labels' beside them"
        )

    def images_of(self, split: str, records: store.Records) -> rows.Component:
        names = self._names_of(split)
        for name in names:
            if name not in self._class_ids:
                raise UserError(
                    f"config.data.{split}_files: unknown class {name!r}; the classes are: "
                    f"{', '.join(self.names[:20])}"
                )
        labels = np.array([self._class_ids[name] for name in names])[known_labels(records)]
        mixup = self.mixup if split == "train" else 0.0
        return LabelledRows(records, self.view_of(split), self.philox_key, labels, mixup)

    @cached_property
    def _class_ids(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    def batch_spec(self, row_shape):
        shape = (self.config.train.batch, 2 if self.mixup else 1)
        return self.image_spec() | {
            "labels": jax.ShapeDtypeStruct(shape, jnp.int32),
            "shares": jax.ShapeDtypeStruct(shape, jnp.float32),
        }

    @property
    def head(self) -> Head:
        return Head(len(self.names), self.head_dropout, pools=self.hidden_head, zeros=True)

    def init(self, rng):
        head_key, model_key = jax.random.split(rng)
        vector = jnp.zeros((1, self.model.d_model))
        head = self.head.init(head_key, vector)["params"]
        return {**self.init_model(model_key), "head": head}

    def group(self, path):
        return None if self.frozen and path[0] != "head" else super().group(path)

    def weights(self, batch):
        # An image has one label of share 1, two labels whose shares sum to 1 with mixup, or share 0
        # if it only pads the batch.
        return {"loss": batch["shares"].sum()}

    def logits(self, params, images, context: Context = _EVALUATION) -> jax.Array:
        """Returns the logits (B, classes) float32 of images uint8 (B, S, S, C)."""
        model_key, head_key = jax.random.split(context.rng) if context.train else (None, None)
        apply = partial(self.model.apply, {"params": self.model_params(params)})
        # A frozen model has no dropout either: its hidden states are fixed features.
        train = context.train and not self.frozen
        rngs = {"dropout": model_key} if train else None
        hidden = apply(Inputs(images=images), train=train, rngs=rngs, method="hidden")
        hidden = jax.lax.stop_gradient(hidden) if self.frozen else hidden
        return self.head.apply(
            {"params": params["head"]},
            apply(hidden, method="pooled"),
            train=context.train,
            rngs={"dropout": head_key} if context.train else None,
        )

    def loss(self, params, batch, context: Context) -> Loss:
        logits = self.logits(params, batch["images"], context)
        labels, shares = batch["labels"], batch["shares"]
        each = jnp.broadcast_to(logits[:, None], (*labels.shape, logits.shape[-1]))
        nll = jnp.sum(label_nll(each, labels) * shares)
        smoothing = self.label_smoothing if context.train else 0.0
        loss = nll
        if smoothing:
            # The cross-entropy with the uniform distribution: its mean over classes needs no second
            # array (B, classes) of log-probabilities.
            uniform = jax.nn.logsumexp(logits, axis=-1) - logits.mean(axis=-1)  # (B,)
            loss = (1 - smoothing) * nll + smoothing * jnp.sum(uniform * shares.sum(axis=-1))
        is_right = logits.argmax(axis=-1)[:, None] == labels
        count = shares.sum()
        metrics = {
            "loss": (loss, count),
            "accuracy": (jnp.sum(is_right * shares), count),
            "filled": (count, jnp.float32(len(shares))),
        }
        return Loss({"loss": loss}, metrics)

    def flops(self, row_shape: int = 0) -> float:
        # The factor 3, because a backward pass costs two forward passes. A frozen model has none.
        passes = 1 if self.frozen else 3
        return passes * self.model.flops(self.model.num_patches)

    def positions(self, row_shape: int = 0) -> int:
        return 1

    def evaluate(self, params, split: str) -> dict:
        """Returns the mean loss and the scores of a split.

        For at most 100 classes, they include the macro F1 and the confusion matrix. Raises
        UserError if the run has no such split.
        """
        component = arguments.held_out(self.split_rows, split, "files")
        labels, classes = component.labels, len(self.names)
        losses, predicted = np.zeros(len(labels)), np.zeros(len(labels), int)
        start = 0
        for logits in self._outputs(params, component, f"evaluating {split}"):
            part = slice(start, start + len(logits))
            log_probabilities = scipy.special.log_softmax(logits, axis=-1)
            losses[part] = -log_probabilities[np.arange(len(logits)), labels[part]]
            predicted[part] = logits.argmax(axis=-1)
            start += len(logits)
        results = {"loss": float(losses.mean()), "accuracy": scores.accuracy(labels, predicted)}
        if classes <= _FEW_CLASSES:
            counts = scores.confusion(labels, predicted, classes).tolist()
            results["macro_f1"] = scores.macro_f1(labels, predicted, range(classes))
            results["confusion"] = {"labels": self.names, "counts": counts}
        return results | {"records": len(labels)}

    def predict(
        self, params, lines: Iterable[str], *, long: str | None = None
    ) -> Iterator[Prediction]:
        """Yields the class of each image file. A line is the path of a file.

        An empty line has an empty prediction. Raises UserError for a file that is not an image, and
        if `long` is not None, because images have no length.
        """
        if long is not None:
            raise UserError(f"--long={long}: this run reads images, which have no length")
        for chunk in chunks(arguments.as_texts(lines), self.config.decode.batch):
            paths = [line.strip() for line in chunk]
            files = FileRows([path for path in paths if path], self.view, self.source.max_bytes)
            outputs = np.concatenate([*self._outputs(params, files)]) if len(files) else ()
            remaining = iter(outputs)
            for path in paths:
                yield self._prediction(path, next(remaining) if path else None)

    def _prediction(self, path: str, logits: np.ndarray | None) -> Prediction:
        if logits is None:
            return Prediction("", {"file": "", "label": None, "probabilities": None})
        label = self.names[int(logits.argmax())]
        probabilities = dict(zip(self.names, map(float, scipy.special.softmax(logits))))
        return Prediction(label, {"file": path, "label": label, "probabilities": probabilities})

    def result(self, params, texts: Sequence[str]):
        """Returns the figure of the attention rollout over images, with their predicted classes.

        `texts` are paths of image files. By default, the first held-out images are shown.
        """
        shown = self.shown(texts)
        placement = Placement.of(params, self.config.mesh)
        # Images are repeated until their number can be divided over the devices.
        rows_of_mesh = np.resize(shown, (placement.rows(len(shown)), *shown.shape[1:]))
        logits = jax.device_get(hosts.run(self._compiled, placement, params, rows_of_mesh))
        classes = [self.names[index] for index in logits[: len(shown)].argmax(axis=-1)]
        title = "attention rollout (Abnar & Zuidema 2020), and the predicted classes"
        return pictures.shares(shown, self.rollout(params, shown), title, classes)

    def _outputs(self, params, component, title: str = "") -> Iterator[np.ndarray]:
        """Yields the logits (N, classes) of the rows of a component, batch by batch, in order."""
        placement = Placement.of(params, self.config.mesh)
        size = placement.rows(self.config.decode.batch)
        evaluated = rows.EvalRows(component)
        count = evaluated.num_batches(size)
        for number in track(range(count), f"{title} (batches)", count) if title else range(count):
            images = evaluated.batch(number, range(size), size)["images"]
            computed = hosts.run(self._compiled, placement, params, images)
            yield jax.device_get(computed)[: len(component) - number * size]

    @cached_property
    def _compiled(self):
        """The function of (placement, params, images) to logits."""

        @partial(jax.jit, static_argnums=0)
        def logits(placement, params, images):
            with placement.use():
                return gathered(self.logits(params, split_rows(images)))

        return logits
