"""Measures skip-gram beside gensim's word2vec: words a second, what takes the time, neighbours.

python benchmarks/word_vectors.py --data=FILE [--json=FILE] [--case=speed|parts|neighbours] [--tiny]

The file has one text a line, such as the film reviews of IMDB. Both sides have the settings of
configs/word_vectors/skip_gram.py, the same words and two threads. It needs gensim (extra "bench").
"""

import functools
import os
import tempfile
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from harness import beside, main, sides

from transformer_jax.config import load
from transformer_jax.data.tokenizers.words import Words

_THREADS = 2
_PEER = f"gensim, {_THREADS} threads"
_CONFIG = "configs/word_vectors/skip_gram.py"
# Words of one kind, as film reviews have them.
SETS = {
    "people": "actor actress director writer producer composer screenwriter filmmaker",
    "family": "mother father brother sister daughter son uncle wife",
    "numbers": "two three four five six seven eight ten",
    "genres": "comedy drama thriller horror western musical documentary romance",
    "praise": "great excellent superb wonderful fantastic brilliant terrific outstanding",
}


def documents(path: str, num_words: int) -> list[list[str]]:
    """Returns the words of the first texts of a file, about so many in all."""
    uncased = Words.train(["word"], 10, cased=False)
    texts, count = [], 0
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            texts.append(list(uncased.split(line)))
            count += len(texts[-1])
            if count >= num_words:
                break
    return texts


def task_of(path: str, num_words: int, epochs: int, folder: str):
    """Returns the program and the rows of a run over the first words of a file."""
    from transformer_jax.runs.spec import make_task
    from transformer_jax.training.step import Program

    file = os.path.join(folder, "text.txt")
    with open(file, "w", encoding="utf-8") as out:
        out.writelines(" ".join(text) + "\n" for text in documents(path, num_words))
    keys = {
        "data.train_files": file,
        "data.split_on": "line",
        "data.cache": os.path.join(folder, "cache"),
    }
    task = make_task(load(_CONFIG, keys))
    rows = len(task.rows().train.phases[0].components[0])
    keys["model.vocab_size"] = task.tokenizer.vocab_size
    keys["train.num_steps"] = max(rows * epochs // task.config.train.batch, 1)
    task = make_task(load(_CONFIG, keys))
    return task, Program.of(task.config, task)


def trained(path: str, num_words: int, epochs: int, folder: str):
    """Returns a call that trains, and returns the task and the last state."""
    import jax

    from transformer_jax.training import step as states
    from transformer_jax.training import trainer

    task, program = task_of(path, num_words, epochs, folder)
    train = task.config.train

    def call():
        state = states.init(task.config, program)
        read, steps = task.rows().train.batch, range(train.num_steps)
        for batch in trainer.stream(read, train.batch, 1, program.batch_sharding, steps):
            state = program.train_step(state, batch)
        jax.block_until_ready(state)
        return task, state

    return call


def gensim_trained(path: str, num_words: int, epochs: int):
    """Returns a call that trains gensim's word2vec, and returns it."""
    from gensim.models import Word2Vec

    texts = documents(path, num_words)
    options = dict(vector_size=100, window=5, negative=5, sample=1e-3, min_count=5)

    model = Word2Vec(sg=1, hs=0, workers=_THREADS, **options)
    model.build_vocab(texts)

    def call():
        model.train(texts, total_examples=len(texts), epochs=epochs)
        return model

    return call


def speed(tiny: bool, path: str):
    """Words of the text a second, in one epoch. Both sides have counted the words before."""
    num_words = 20_000 if tiny else 2_000_000
    count = sum(map(len, documents(path, num_words)))
    with tempfile.TemporaryDirectory() as folder:
        spent = sides(
            {
                "ours": ("jax", functools.partial(trained, path, num_words, 1, folder)),
                _PEER: ("gensim", functools.partial(gensim_trained, path, num_words, 1)),
            },
            repeats=1 if tiny else 3,
        )
    case = f"skip-gram of {num_words:,} words"
    yield from beside(case, spent, "words/s", lambda seconds: count / seconds)


def parts(tiny: bool, path: str):
    """The time of an update, and that of its parts alone: rows on the host, and the descent."""
    import jax
    import jax.numpy as jnp

    from transformer_jax.contracts.task import Context
    from transformer_jax.training import step as states

    with tempfile.TemporaryDirectory() as folder:
        task, program = task_of(path, 20_000 if tiny else 2_000_000, 1, folder)
        numbers = range(task.config.train.batch)
        rows = task.rows().train.batch(0, numbers)
        batch = {
            name: jax.device_put(values[None], program.batch_sharding)
            for name, values in rows.items()
        }
        state = states.init(task.config, program)
        context = Context(rate=jnp.float32(0.025), train=True)
        descent = jax.jit(lambda params, rows: task.loss(params, rows, context).terms)
        on_device = jax.tree.map(lambda x: x[0], batch)

        def update():
            nonlocal state
            state = program.train_step(state, batch)
            return state.step

        calls = {
            "an update": update,
            "descent over its blocks alone": lambda: descent(state.params, on_device),
            "its rows on the host": lambda: task.rows().train.batch(1, numbers),
        }
        for name, call in calls.items():
            times = []
            for _ in range(7):
                start = time.perf_counter()
                jax.block_until_ready(call())
                times.append(time.perf_counter() - start)
            row = {"case": f"{name}, {int((rows['texts'] > 0).sum()):,} words"}
            yield row | {"ours": float(np.median(times[1:])) * 1000, "unit": "ms"}


def neighbours(tiny: bool, path: str):
    """The share of the words of SETS whose neighbours among them are of their own set."""
    num_words, epochs = (20_000, 1) if tiny else (12_000_000, 5)
    with tempfile.TemporaryDirectory() as folder:
        task, state = trained(path, num_words, epochs, folder)()
        table = np.asarray(state.params["token_embed"]["embedding"])
        ours = agreement(
            lambda word: table[task.tokenizer.encode(word)[0]],
            lambda word: not task.tokenizer.special[task.tokenizer.encode(word)[0]],
        )
    model = gensim_trained(path, num_words, epochs)().wv
    theirs = agreement(model.get_vector, model.__contains__)
    yield {
        "case": f"neighbours of their own set, {epochs} epochs of {num_words:,} words",
        "ours": ours,
        "unit": "share",
        "peer_name": _PEER,
        "peer": theirs,
        "ratio": ours / max(theirs, 1e-9),
    }


def agreement(vector_of, is_known) -> float:
    """Returns the mean share of a word's nearest words in SETS that are of its set.

    It counts as many of the nearest as its set has other words.
    """
    pairs = [(word, name) for name, of_set in SETS.items() for word in of_set.split()]
    pairs = [(word, name) for word, name in pairs if is_known(word)]
    table = np.stack([vector_of(word) for word, _ in pairs])
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    cosines = table @ table.T
    np.fill_diagonal(cosines, -np.inf)
    names = np.array([name for _, name in pairs])
    shares = []
    for row, name in zip(cosines, names):
        others = max((names == name).sum() - 1, 1)
        shares.append((names[np.argsort(-row)[:others]] == name).mean())
    return float(np.mean(shares))


if __name__ == "__main__":
    cases = {"speed": speed, "parts": parts, "neighbours": neighbours}
    given = ("data", "a file of texts, one a line")
    main(__doc__, cases, ("jax", "jaxlib"), given=given, releases=True)
