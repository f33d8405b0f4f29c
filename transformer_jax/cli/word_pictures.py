"""The pictures of `draw` that are about words: neighbours and analogies."""

from transformer_jax.cli import flags as cli
from transformer_jax.config import UserError

_NUM_ANSWERS = 10


def neighbours(options, folder: str):
    """Returns the figure of a word's neighbours in texts, or those of its vector alone."""
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
    words = [contexts.of_word(task, params, word, of_word) for word, of_word in texts.items()]
    pairs = [pair for each in words for pair in each.pairs(layer)]
    title = f'neighbours of "{options.word or "all words"}" in layer {layer}, {folder}'
    static = words[0].static if len(words) == 1 else []
    return pictures.neighbours(pairs, static, contexts.accuracies(words), title)


def analogy(options, folder: str):
    """Returns the figure of the answers to an analogy, or of the accuracies of a file of them."""
    from transformer_jax import pictures
    from transformer_jax.inference import static_vectors
    from transformer_jax.runs.open import open_run

    if bool(options.words) == bool(options.analogies):
        raise UserError("give either --words=man,king,woman or --analogies=FILE")
    if options.words and len(options.words) != 3:
        raise UserError(f"--words={','.join(options.words)}: must be three words, a,b,c")
    task, params = open_run(folder, options.step, cli.overrides(("mesh.",)))
    vectors = static_vectors.StaticVectors.of_run(task, params)
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
    """Prints words with their cosines, and returns them."""
    for word, cosine in words:
        print(f"{word} {cosine:.3f}")
    return words
