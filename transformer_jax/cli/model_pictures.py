"""The pictures of `draw`: masks, positions, results of runs, masked texts, words and analogies."""

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


_CODES = {  # the position vectors that can be drawn without a run, with their titles
    "sinusoidal": "sinusoids (Vaswani et al. 2017, section 3.5)",
    "binary": "binary codes",
    "index": "indices",
    "normalized": "normalized indices",
}


def codes(kind: str | None, count: int, width: int | None):
    """Returns a figure of `count` position vectors of a kind that is not learned.

    The default width is 128 or, for binary codes, the number of bits that the positions need.
    """
    import jax
    import numpy as np

    from transformer_jax import pictures
    from transformer_jax.layers.embeddings import position_codes

    kind = kind or "sinusoidal"
    if kind not in _CODES:
        raise UserError(f"--kind={kind}: must be one of {', '.join(_CODES)}")
    default = max((count - 1).bit_length(), 1) if kind == "binary" else 128
    width = width or default
    encode = jax.jit(position_codes, static_argnums=(0, 2, 3))
    vectors = np.asarray(encode(kind, np.arange(count), width, count))
    return pictures.positions(vectors, f"{_CODES[kind]}: {count} positions, width {width}")


def positions(task, params, folder: str):
    """Returns a figure of the position vectors of a run."""
    import numpy as np

    from transformer_jax import pictures
    from transformer_jax.layers.embeddings import position_codes

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


def masking(text: str, num_draws: int, task=None, params=None, folder: str = ""):
    """Returns a figure of a text, masked several times for masked language modeling.

    A run masks its tokens as in its last phase, except that all tokens are equally likely. Without
    a run, the words of the text are masked, and replaced by others of them. Also prints the masked
    texts, and how many tokens were masked, replaced and unchanged.
    """
    import collections

    import numpy as np

    from transformer_jax import pictures
    from transformer_jax.data.masking import Masking

    if task is None:
        words = text.split()
        pieces = np.array(["[MASK]", "[CLS]", "[SEP]", *sorted({*words})])
        tokens = np.array([1, *(3 + np.searchsorted(pieces[3:], words)), 2])
        mask = Masking(0, np.arange(len(pieces)) < 3, np.zeros(len(pieces), bool), len(tokens))
        name = "word by word"
    else:
        texts = getattr(task, "texts", None)
        if not hasattr(texts, "masking"):
            raise UserError(
                f"--workdir={folder}: a {task.config.task.name} run, which masks no tokens"
            )
        _, length, num_predictions = task.phases[-1]
        tokenizer = task.tokenizer
        tokens = np.array([tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id])
        if len(tokens) > length:
            raise UserError(
                f"--text: its {len(tokens)} tokens exceed the {length} of config.task.phases"
            )
        pieces = np.array(tokenizer.pieces(list(range(tokenizer.vocab_size))))
        mask, name = texts.masking(tokenizer, num_predictions), folder
    draws, counts = [], collections.Counter()
    for number in range(num_draws):
        row = mask(tokens, np.random.default_rng(number))
        fates = mask.fates(tokens, row)
        draws.append(list(zip(pieces[row["tokens"]].tolist(), fates)))
        counts.update(fate for fate in fates if fate)
        print(" ".join(piece for piece, _ in draws[-1]))
    total = counts.total()
    shares = [f"{counts[fate]} {fate}" for fate in ("masked", "replaced", "unchanged")]
    print(f"{total} of {num_draws * len(tokens)} tokens selected: {', '.join(shares)}")
    return pictures.masked(draws, f"masked language modeling, {name}: {text}")


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
    layer = _layer(options, task.model.num_states - 1)
    words = [
        contexts.word_neighbours(task, params, word, of_word) for word, of_word in texts.items()
    ]
    pairs = [pair for each in words for pair in each.pairs(layer)]
    title = f'neighbours of "{options.word or "all words"}" in layer {layer}, {folder}'
    static = words[0].static if len(words) == 1 else []
    return pictures.neighbours(pairs, static, contexts.accuracies(words), title)


_NUM_MAPPED = 60  # the most words or occurrences in a map, whose labels would cover each other


def vectors(options, folder: str):
    """Returns a map of word vectors, or of the contextual vectors of a word in texts."""
    import numpy as np

    from transformer_jax import pictures
    from transformer_jax.inference import neighbours as contexts
    from transformer_jax.inference.static_vectors import StaticVectors
    from transformer_jax.pictures.progress import say
    from transformer_jax.runs.open import open_run

    if not options.texts:
        for flag in ("word", "layer"):
            if options[flag].present:
                raise UserError(f"--{flag}: needs --texts=..., a file of texts, one a line")
        task, params = open_run(folder, options.step, cli.overrides(("mesh.",)))
        table = StaticVectors.from_run(task, params)
        if options.words:
            if unknown := [word for word in options.words if table.known(word) is None]:
                raise UserError(f"--words: {unknown[0]!r} is not in the vocabulary of {folder}")
            names = options.words
            states = np.stack([table.table[table.known(word)].mean(axis=0) for word in names])
        else:
            names, states = table.words()
            # Most tokenizers sort their pieces by frequency, or by length and so by frequency.
            names, states = names[:_NUM_MAPPED], states[:_NUM_MAPPED]
        return pictures.word_map(states, names, title=f"word vectors, {folder}")
    if not options["word"].present:
        raise UserError("--word=... is missing: the word whose occurrences are drawn")
    if options.words:
        raise UserError("--words and --texts: a map is of words or of one --word; give one of them")
    texts = contexts.read(options.texts, options.word)
    if len(texts) > 1 or not options.word:
        raise UserError("--word=: a map is of the occurrences of one word")
    task, params = cli.open_run("features", "gives features", workdir=folder)
    found = contexts.occurrences(task, params, options.word, texts[options.word])
    layer = _layer(options, len(found.states) - 1)
    if len(found.texts) > _NUM_MAPPED:
        say(f"the first {_NUM_MAPPED} of {len(found.texts)} occurrences are drawn")
    return pictures.word_map(
        found.states[layer][:_NUM_MAPPED],
        [contexts.around(text, options.word) for text in found.texts[:_NUM_MAPPED]],
        found.senses[:_NUM_MAPPED],
        f'"{options.word}" in layer {layer}, {folder}',
    )


def _layer(options, last_layer: int) -> int:
    """Returns --layer, or else the last one. Raises UserError if there is no such layer."""
    layer = options.layer or last_layer
    if layer > last_layer:
        layers = f"there are 1 to {last_layer}" if last_layer else "the model has none"
        raise UserError(f"--layer={layer}: {layers}")
    return layer


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
