"""Beginning with a file of word vectors: `config.train.init_vectors`."""

import jax
import numpy as np

from transformer_jax.config import UserError
from transformer_jax.data import vector_files
from transformer_jax.pictures.progress import say
from transformer_jax.training import tensor_names


def check(task, program, *, is_new: bool) -> None:
    """Raises UserError where the embeddings and a file that the config names do not fit.

    For a new run, it reads the whole file, so that a damaged one is refused before the workdir is
    made.
    """
    train = task.config.train
    if not (train.init_vectors or train.freeze_vectors):
        return
    key = "init_vectors" if train.init_vectors else "freeze_vectors"
    table = tensor_names.by_name(program.state.params).get(task.model.word_table)
    if task.reads_source or table is None:
        raise UserError(
            f"config.train.{key}={train[key]}: a {task.config.task.name} run has no embeddings of "
            "words of its own"
        )
    if not train.init_vectors:
        return
    width = vector_files.width(train.init_vectors)
    if width != table.shape[1]:
        raise UserError(
            f"config.train.init_vectors={train.init_vectors}: its vectors have {width} numbers, "
            f"the embeddings of this model {table.shape[1]}; change config.model"
        )
    if is_new:
        for _ in vector_files.read(train.init_vectors):
            pass


def put(task, params):
    """Returns parameters with the vectors of the file that the config names; prints their number.

    A token takes the vector of the word that it stands for. Other rows stay.
    """
    path = task.config.train.init_vectors
    if not path:
        return params
    tokenizer = task.tokenizer.target
    ids = np.flatnonzero(~tokenizer.special).tolist()
    id_of = dict(zip(tokenizer.pieces(ids), ids))
    rows = {}
    for word, vector in vector_files.read(path):
        if word in id_of:
            rows.setdefault(id_of[word], vector)  # of a repeated word, the first
    if not rows:
        raise UserError(f"config.train.init_vectors={path}: has no word of the vocabulary")
    say(f"from {path}: the vectors of {len(rows):,} of {len(ids):,} words")
    places, vectors = np.array([*rows]), np.stack([*rows.values()])

    def with_vectors(key_path, leaf):
        if tensor_names.of_path(key_path) != task.model.word_table:
            return leaf
        put = jax.jit(lambda table: table.at[places].set(vectors), out_shardings=leaf.sharding)
        return put(leaf)

    return jax.tree_util.tree_map_with_path(with_vectors, params)
