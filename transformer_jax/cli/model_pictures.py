"""The pictures of `draw`: masks, positions, results of runs, word neighbors and analogies."""

from transformer_jax import cli
from transformer_jax.config import UserError

# ------------------------------------------------------- masks, positions, and the results of a run


def result(texts: list[str], task, params, folder: str):
    """Returns the figure that a task defines for the results of its runs."""
    if not callable(task.result):
        raise UserError(
            f"--workdir={folder}: a {task.config.task.name} run, whose results have no picture"
        )
    return task.result(params, texts)


def positions(task=None, params=None, folder: str = ""):
    """Returns a figure of the position vectors of a run, or, without a run, of the sinusoids."""
    import numpy as np

    from transformer_jax import pictures
    from transformer_jax.layers.embeddings import position_codes, sinusoids

    if task is None:
        return pictures.positions(
            np.asarray(sinusoids(np.arange(100), 128)),
            "sinusoids (Vaswani et al. 2017, section 3.5): 100 positions, d_model 128",
        )
    if "position_embed" in params:
        table = np.asarray(params["position_embed"]["embedding"], np.float32)
        return pictures.similarity(table, f"learned positions, {folder}")
    kind = task.config.model.get("positions", "none")
    # Rotary positions turn queries and keys, so that no vector is added to the embeddings.
    if kind in ("none", "rotary") or task.model.modality != "tokens":
        name = task.config.model.name
        raise UserError(f"--workdir={folder}: config.model.name={name!r} has no position vectors")
    # A window may have thousands of positions, or no end, and a picture of them would show nothing.
    length = min(task.model.window, 256)
    width = task.model.position_width or task.model.d_model
    return pictures.positions(
        np.asarray(position_codes(kind, np.arange(length), width, task.model.max_length)),
        f"{kind} positions of {folder}: {length} positions, width {width}",
    )


def masks():
    """Returns a figure of the keys that each query attends to under several masks."""
    import jax.numpy as jnp
    import numpy as np

    from transformer_jax import pictures
    from transformer_jax.layers.masks import Mask

    length = 12
    padding = jnp.array([[1] * 8 + [0] * 4])
    packed = jnp.array([[1] * 5 + [2] * 4 + [3] * 3])
    examples = {
        "causal": Mask(causal=True),
        "padding: 8 tokens of 12": Mask(key_segments=padding),
        "packed: 5 + 4 + 3 tokens": Mask(query_segments=packed, key_segments=packed),
        "packed and causal": Mask(causal=True, query_segments=packed, key_segments=packed),
        "local: a window of 4": Mask(causal=True, window=jnp.int32(4)),
    }
    dense = {
        name: np.broadcast_to(mask.dense(length, length)[0, 0], (length, length))
        for name, mask in examples.items()
    }
    return pictures.masks(dense, "keys that a query sees (dark)")


# ---------------------------------------------------------------- neighbors of words, and analogies

_NUM_ANSWERS = 10  # the number of words that complete an analogy


def neighbours(options, folder: str):
    """Returns a figure of a word's nearest neighbors, in texts or by its static vector alone."""
    from transformer_jax import pictures
    from transformer_jax.inference import neighbours as contexts
    from transformer_jax.runs.open import open_run

    if not options.texts:
        if options["layer"].present:
            raise UserError("--layer: needs --texts=..., a file of texts, one a line")
        task, params = open_run(folder, options.step, cli.overrides(("mesh.",)))
        nearest = _printed(contexts.static(task, params, options.word))
        if not nearest:
            raise UserError(f"--word={options.word}: not in the vocabulary of {folder}")
        return pictures.bars(nearest, "cosine", f'words nearest to "{options.word}", {folder}')
    texts = contexts.read(options.texts, options.word)
    task, params = cli.open_run("features", "gives features", workdir=folder)
    last_layer = task.model.num_states - 1
    layer = options.layer or last_layer
    if layer > last_layer:
        layers = f"there are 1 to {last_layer}" if last_layer else "the model has none"
        raise UserError(f"--layer={layer}: {layers}")
    words = [
        contexts.word_neighbours(task, params, word, of_word) for word, of_word in texts.items()
    ]
    pairs = [pair for each in words for pair in each.pairs(layer)]
    title = f'neighbours of "{options.word or "all words"}" in layer {layer}, {folder}'
    static = words[0].static if len(words) == 1 else []
    return pictures.neighbours(pairs, static, contexts.accuracies(words), title)


def analogy(options, folder: str):
    """Returns a figure of the answers to an analogy, or of the accuracies on a file of them."""
    from transformer_jax import pictures
    from transformer_jax.inference import static_vectors
    from transformer_jax.runs.open import open_run

    if bool(options.words) == bool(options.analogies):
        raise UserError("give either --words=man,king,woman or --analogies=FILE")
    if options.words and len(options.words) != 3:
        raise UserError(f"--words={','.join(options.words)}: must be three words, a,b,c")
    task, params = open_run(folder, options.step, cli.overrides(("mesh.",)))
    vectors = static_vectors.StaticVectors.from_run(task, params)
    if options.words:
        a, b, c = options.words
        answers = _printed(vectors.analogy((a, b, c), _NUM_ANSWERS))
        return pictures.bars(answers, "cosine", f"{b} - {a} + {c}, {folder}")
    sections = static_vectors.accuracies(vectors, options.analogies)
    for each in sections:
        print(f"{each.name}  {each.accuracy:.3f}  {each.right}/{each.known}", end="")
        print(f"  {each.unknown} with an unknown word" if each.unknown else "")
    by_name = [(each.name, each.accuracy) for each in sections]
    return pictures.bars(by_name, "accuracy", f"analogies of {options.analogies}, {folder}")


def _printed(words: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Prints words with their cosine similarities, and returns both."""
    for word, cosine in words:
        print(f"{word} {cosine:.3f}")
    return words
