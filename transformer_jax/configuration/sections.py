"""The sections of a config outside `model` and `task`: keys with their defaults and meanings."""

import dataclasses
from typing import Literal

Updates = int | float  # whole updates, or a fraction of config.train.num_steps (run_length.py)


@dataclasses.dataclass
class Data:
    # folder of token stores and trained tokenizers; TRANSFORMER_JAX_STORES_GB limits its size
    cache: str = "~/.cache/transformer_jax/data"
    rebuild: bool = False  # delete this run's token stores and build them again (damaged data)
    seed: int = 0  # of the order of the rows, and of the random choices inside a row
    # processes that read the rows of training on each host; 0: the training process reads them.
    # Results do not change
    readers: int = 0
    # a built-in corpus instead of files: grammar (sentence pairs, or conversations about them),
    # python (sources of the standard library), pydoc (its documentation), functions (its functions
    # and their summaries) or inference (labelled pairs of the grammar's English)
    corpus: Literal["", "grammar", "python", "pydoc", "functions", "inference"] = ""
    # training pairs, or conversations, drawn from the built-in grammar (grammar, inference)
    corpus_size: int = 30_000
    # text files: paths (or gs://..., s3://...) and patterns, separated by commas; *.jsonl holds
    # JSON objects, one a line
    train_files: str | None = None
    valid_files: str | None = None  # as train_files, for the evaluations of the run
    test_files: str | None = None  # as train_files, for --set=test
    # instead of train_files: ((files, weight), ...); the rows of each are drawn in proportion to
    # its whole weight
    mixture: tuple = ()
    # the end of a document in a text file
    split_on: Literal["blank_line", "line", "file"] = "blank_line"
    text_field: str = "text"  # field of the text in JSON lines and TFDS sets
    # makes documents SOURCE marker TARGET of sentence pairs, for a language model, e.g. "<to-de>"
    # or "<summarize>"
    marker: str = ""
    sentences: Literal["line", "punctuation"] = "line"  # the end of a sentence in a document
    # no attention between the documents of a row, and positions that begin anew with each
    mask_documents: bool = False
    # text files of one sentence a line; line n of the source belongs to line n of the target
    train_source: str | None = None
    train_target: str | None = None  # the translation of train_source
    valid_source: str | None = None  # as train_source, for the evaluations of the run
    valid_target: str | None = None  # the translation of valid_source
    test_source: str | None = None  # as train_source, for --set=test
    test_target: str | None = None  # the translation of test_source
    tfds_name: str | None = None  # a prepared TFDS set, e.g. "wmt14_translate/de-en"
    tfds_dir: str | None = None  # the data_dir in which the TFDS set was prepared
    train_split: str | None = None  # split of the TFDS set; None: train
    valid_split: str | None = None  # as train_split, for the evaluations; None: validation
    test_split: str | None = None  # as train_split, for --set=test; None: test
    source_language: str = "en"  # feature of the TFDS set that is the source
    target_language: str = "de"  # feature of the TFDS set that is the target
    # kind of tokenizer to train on the text; unigram and bpe are SentencePiece's, roberta_bpe is
    # byte_bpe with RoBERTa's special tokens, a mask among them
    tokenizer: Literal[
        "unigram", "bpe", "byte_bpe", "roberta_bpe", "characters", "wordpiece", "words"
    ] = "unigram"
    cased: bool = False  # wordpiece and words: keep case; wordpiece: accents, too
    min_count: int = 1  # words: the least occurrences of a word in the training text
    # a larger text trains its tokenizer on a sample of so many bytes; characters reads all
    tokenizer_bytes: int = 50_000_000
    # a folder with a trained tokenizer: encoder.json and vocab.bpe, vocab.json and merges.txt,
    # vocab.txt (BERT), tokenizer.json (Llama, Qwen2, T5), spiece.model (T5), or source.spm,
    # target.spm and vocab.json (Marian)
    tokenizer_files: str | None = None


@dataclasses.dataclass
class Train:
    num_steps: int = 1000  # updates in the whole run
    batch: int = 64  # rows of an update, over all hosts and microbatches
    # rows of the first update, for a growing batch (Brown et al. 2020, appendix B); 0: a constant
    # batch
    first_batch: int = 0
    ramp_steps: int = 0  # updates in which the batch grows to config.train.batch
    accumulation: int = 1  # microbatches of an update
    seed: int = 0  # of the initial parameters and of dropout
    # updates between progress lines; except for these, evaluations and checkpoints, the host does
    # not wait for the devices
    log_every: int = 50
    eval_every: Updates = 500  # updates between evaluations; the end is always evaluated
    patience: int = 0  # evaluations in a row without a better best_metric that end the run; 0: off
    # begin with the parameters of config.init_from; false: with its tokenizer alone (a fine-tuning:
    # and the shape of its model)
    pretrained: bool = True
    # a file of word vectors, as word2vec or GloVe writes it, for the embeddings that the model
    # reads; the vectors of words that it lacks are as initialised
    init_vectors: str | None = None
    freeze_vectors: bool = False  # do not train these embeddings
    # a non-finite loss or gradient: stop the run, or skip the update
    nonfinite: Literal["stop", "skip"] = "stop"
    grace: float = 60.0  # seconds for a step to end after SIGTERM or Ctrl-C; else the run exits


# The keys of an optimizer that not all of them use.
OPTIMIZERS = {
    "adam": ("b1", "b2", "eps"),
    "adamw": ("b1", "b2", "eps", "weight_decay"),
    "lamb": ("b1", "b2", "eps", "weight_decay"),
    "adafactor": ("decay_exponent", "weight_decay"),
    "sgd": ("momentum", "weight_decay"),
    "rmsprop": ("b2", "eps", "weight_decay"),
    "adagrad": ("eps", "initial_sum", "weight_decay"),
    "adadelta": ("b2", "eps", "weight_decay"),
    "lion": ("b1", "b2", "weight_decay"),
    "muon": ("muon_momentum", "b1", "b2", "eps", "weight_decay"),
    "schedule_free": ("b1", "b2", "eps", "weight_decay"),
}
# The keys of a schedule, likewise.
SCHEDULES = {
    "constant": (),
    "inverse_sqrt": (),
    "truncated_inverse_sqrt": (),
    "linear": ("decay_steps", "final_fraction"),
    "cosine": ("decay_steps", "final_fraction"),
    "polynomial": ("decay_steps", "final_fraction", "power"),
    "warmup_stable_decay": ("decay_steps", "final_fraction", "cooldown_steps"),
    "slanted_triangular": ("decay_steps", "ratio"),
}


@dataclasses.dataclass
class Optimizer:
    # weight decay is apart from the gradient; adam has none. muon is for the matrices of layers,
    # and adamw for the other parameters beside it
    name: Literal[*OPTIMIZERS] = "adamw"
    learning_rate: float = 1e-3  # the peak of the schedule
    # course of the learning rate after a linear warm-up
    schedule: Literal[*SCHEDULES] = "constant"
    # updates of the linear warm-up; of truncated_inverse_sqrt: updates with the peak
    warmup_steps: Updates = 0
    decay_steps: Updates | None = None  # end of a schedule that falls; None: the end of the run
    final_fraction: float = 0.0  # fraction of the peak at which a schedule ends
    power: float = 2.0  # of polynomial: exponent of the part of the run that is left
    cooldown_steps: Updates = 0.1  # updates of the linear fall that ends warmup_stable_decay
    # of slanted_triangular: the peak over the rate at the start and the end (Howard & Ruder 2018,
    # section 3.2)
    ratio: float = 32.0
    # decay of the mean of gradients; of lion and schedule_free: part of the mean in a mixture
    b1: float = 0.9
    b2: float = 0.999  # decay of the mean of squared gradients; of lion: of the mean of gradients
    eps: float = 1e-8  # added to the root of the mean square; adagrad, adadelta: to the square
    initial_sum: float = 0.0  # of adagrad: the sum of squared gradients before the first update
    momentum: float = 0.9  # of sgd: decay of the sum of gradients; 0: none
    muon_momentum: float = 0.95  # of muon: decay of the mean of a matrix's gradients
    decay_exponent: float = 0.8  # of adafactor: the decay of update t is 1 - t^-decay_exponent
    weight_decay: float = 0.0  # of kernels and embeddings; adam has none
    # factor of a layer's learning rate over that of the layer above; the embeddings are lowest
    # (Howard & Ruder 2018, section 3.2)
    layer_decay: float = 1.0
    clip_norm: float = 0.0  # largest global norm of the gradient; 0: no clipping
    # of a group: the update from which it learns, with a schedule for the rest of the run
    begin: Updates = 0
    # differences of the optimizer of a group of parameters that the task names:
    # ((group, ((key, value), ...)), ...); clip_norm is then that of the group's gradient
    groups: tuple = ()


@dataclasses.dataclass
class Checkpoint:
    every: Updates = 1000  # updates between checkpoints; the end is always saved
    minutes: float = 15.0  # most minutes between checkpoints, beside every; 0: by updates alone
    keep: int = 3  # number of newest checkpoints kept, beside the best
    best_metric: str = "valid/loss"  # score that decides which checkpoint is the best; "": none
    best_mode: Literal["min", "max"] = "min"  # whether a low or a high best_metric is good


@dataclasses.dataclass
class Mesh:
    data: int = -1  # devices that the batch is split over; -1: all that the other axes leave
    fsdp: int = 1  # devices that parameters and optimizer state are split over
    tensor: int = 1  # devices that heads, MLP width and vocabulary are split over
    # devices that the positions of a row are split over, with ring attention (Liu et al. 2023)
    sequence: int = 1
    rules: tuple = ()  # overrides of sharding.RULES, e.g. (("vocab", ("tensor", "fsdp")),)


@dataclasses.dataclass
class Decode:
    batch: int = 64  # sentences decoded together
    beam: int = 4  # open hypotheses of beam search; 1: greedy
    alpha: float = 0.6  # length penalty: log-probabilities are divided by it, see penalty
    # length penalty of an output: gnmt: ((5 + length) / 6)^alpha (Wu et al. 2016); length:
    # length^alpha, as in transformers
    penalty: Literal["gnmt", "length"] = "gnmt"
    max_extra: int = 50  # tokens by which an output may be longer than its input
    # most tokens of an output of an encoder-decoder, its end included; 0: those of its input and
    # max_extra
    max_length: int = 0
    min_length: int = 0  # fewest tokens of an output, its end included
    no_repeat_ngram: int = 0  # no output has a sequence of so many tokens twice; 0: it may
    force_end: bool = False  # an output with the most tokens has the end as its last
    # the probabilities of the tokens that these rules leave sum to 1
    renormalize: bool = False
    # when an input is done: exact: no open hypothesis can come among the n best. As in
    # transformers: never: none can come among the best `beam`; estimate (False there): none could
    # with its present length; first (True there): `beam` outputs have ended
    early_stopping: Literal["exact", "never", "estimate", "first"] = "exact"
    # positions of a window that an evaluation of a language model predicts; the others are context;
    # 0: half of them
    stride: int = 0
    average: int = 1  # decode with the mean of this many checkpoints, up to the chosen one


@dataclasses.dataclass
class Lora:
    # the rank r of the adapters (Hu et al. 2021): a matrix W is W + alpha / r A B, and of these A
    # and B alone are trained; None: no adapters, W is trained
    rank: int | None = None
    alpha: float = 16.0  # factor of A B, over the rank
    # matrices with adapters: patterns of the names of parameters, or of their ends, such as
    # "mlp/*/kernel"; "*/kernel": all matrices of layers
    matrices: tuple = ("query/kernel", "value/kernel")
    # layers of each stack with adapters, from 0: "0,2,4", or a slice such as "6:"; empty: all
    layers: str = ""
    # parameters that are trained whole, beside the task's own head: patterns as in matrices
    trained: tuple = ()


INIT_FROM = "init_from"  # the only key without a section
INIT_FROM_MEANING = (
    "workdir of the run whose parameters and tokenizer a new run begins with; or "
    "{prefix: workdir}, for the parameters whose names begin with each prefix"
)
SOURCE_NAME_MEANING = (
    "file in transformer_jax/data/sources/ that gives records which are not text; "
    "empty: config.data names the texts"
)

SECTIONS = {
    "data": Data,
    "train": Train,
    "optimizer": Optimizer,
    "checkpoint": Checkpoint,
    "mesh": Mesh,
    "decode": Decode,
    "lora": Lora,
}

# The keys that a resumed run may change. A path may change because the fingerprint of the data
# decides, not its place.
MAY_CHANGE = (
    "train.num_steps",
    "train.log_every",
    "train.eval_every",
    "train.nonfinite",
    "train.patience",
    "train.grace",
    "checkpoint.",
    "mesh.",
    "decode.",
    "data.cache",
    "data.rebuild",
    "data.readers",
    "data.tokenizer_files",
    "data.mixture",
    "data.train_",
    "data.valid_",
    "data.test_",
    "data.tfds_dir",
)
