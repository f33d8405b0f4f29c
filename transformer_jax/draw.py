"""Draws pictures of a model and its training into a file: python -m transformer_jax.draw
attention --workdir=DIR --text="..." --output=FILE.png

    attention     the attention weights between the words of --text, in all layers and heads; with
                  --layer=2 in the heads of one layer, labeled with the words; with --layer=2
                  --head=3 in one head
    animation     a GIF file: how the layers of the encoder read --text, and how the decoder of a
                  translation run writes the translation, or --target, token by token
    coreference   the words that "it" attends to in "The animal didn't cross the street because it
                  was too tired" and "... too wide"; --text (twice) and --word set others
    neighbours    the occurrences of --word in --texts=FILE with the most similar hidden states in
                  the last layer, or in --layer=2, beside the nearest neighbors of its embedding.
                  If lines are WORD, SENSE and TEXT separated by tabs, also the share of occurrences
                  whose nearest neighbor has the same sense, by layer; --word= takes all words.
                  Without --texts, the words whose vectors are nearest to the vector of --word
    analogy       the words nearest to b - a + c for --words=a,b,c, such as man,king,woman; with
                  --analogies=FILE of lines ": SECTION" and "a b c d", the share of questions for
                  which the nearest word is d, by section
    vectors       a map of the word vectors of a run, by their first two principal components: of
                  --words=a,b,c, or of its first words; with --word and --texts=FILE as in
                  `neighbours`, a map of the contextual vectors of the occurrences of the word in
                  the last layer, or in --layer=2
    positions     the position vectors of the run, with cosine similarities for learned ones;
                  without --workdir the sinusoids of Vaswani et al. 2017, or --kind=binary, index or
                  normalized, of --count positions and --width columns
    masking       how --text is masked for masked language modeling in several draws: by the run of
                  --workdir, or word by word, with 15 % of the words selected, of which 80 % are
                  masked, 10 % replaced and 10 % unchanged
    masks         the keys that a query sees: causal, padding, packed and local masks
    result        the results of a run, if its task can draw them. Contacts: those of a protein in
                  --text=RESIDUES, or of the first held-out one beside the truth. Images: the
                  patches that the class depends on, by attention rollout, or the reconstructed
                  patches of masked_patches, for files --text=FILE or the first held-out images
    confusion     how often each label of --set was predicted as each label, by a classifier
    curves        the learning curves of one or more --workdir, from their metrics.jsonl
"""

from absl import flags

from transformer_jax import cli
from transformer_jax.cli import model_pictures
from transformer_jax.config import UserError

# The sentences of Uszkoreit 2017, whose last word decides what "it" refers to.
_SENTENCE = "The animal didn't cross the street because it was too {}."
TIRED, WIDE = _SENTENCE.format("tired"), _SENTENCE.format("wide")

_FLAGS = {  # besides --output; others are refused, because a picture would ignore them
    "attention": ("workdir", "step", "text", "target", "kind", "layer", "head", "pieces"),
    "animation": ("workdir", "step", "text", "target"),
    "coreference": ("workdir", "step", "text", "word"),
    "neighbours": ("workdir", "step", "word", "texts", "layer"),
    "analogy": ("workdir", "step", "words", "analogies"),
    "vectors": ("workdir", "step", "words", "word", "texts", "layer"),
    "positions": ("workdir", "step", "kind", "count", "width"),
    "masking": ("workdir", "step", "text", "draws"),
    "masks": (),
    "result": ("workdir", "step", "text"),
    "confusion": ("workdir", "step", "set"),
    "curves": ("workdir", "against", "metrics"),
}


def define_flags() -> None:
    cli.define_commands(*_FLAGS)
    cli.define_workdir(multiple=True)
    cli.define_step()
    flags.DEFINE_string(
        "output",
        None,
        "File to write, *.png, *.svg or *.pdf; default PICTURE.png. An animation is a *.gif file.",
    )
    flags.DEFINE_list(
        "size", [], "WIDTH,HEIGHT of the picture in inches; default: what suits its content."
    )
    flags.DEFINE_integer(
        "dpi", 150, "Pixels of a PNG file in an inch.", lower_bound=20, upper_bound=1200
    )
    flags.DEFINE_multi_string("text", [], "A text; for coreference, two or more.")
    flags.DEFINE_string(
        "target", None, "Translation of --text; default: the model's own translation."
    )
    flags.DEFINE_string(
        "kind",
        None,
        "Attention of a translation run: cross (the default), encoder or decoder; positions "
        "without a run: sinusoidal (the default), binary, index or normalized.",
    )
    flags.DEFINE_integer(
        "count", 100, "positions without a run: number of positions.", lower_bound=1
    )
    flags.DEFINE_integer(
        "width",
        None,
        "positions without a run: number of columns; default: 128, or the bits of binary codes.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "draws", 12, "masking: number of times that the text is masked.", lower_bound=1
    )
    flags.DEFINE_integer("layer", None, "Number of a layer, from 1.", lower_bound=1)
    flags.DEFINE_integer("head", None, "Number of a head, from 1.", lower_bound=1)
    flags.DEFINE_string(
        "word",
        "it",
        "coreference: the word that refers to another; neighbours, vectors: the word.",
    )
    flags.DEFINE_string("texts", None, "neighbours, vectors: a file of texts, one per line.")
    flags.DEFINE_list(
        "words",
        [],
        "analogy: a,b,c asks for the word that is to c as b is to a; vectors: words of the map.",
    )
    flags.DEFINE_string("analogies", None, "analogy: a file of sections, with four words per line.")
    flags.DEFINE_bool("pieces", False, "attention: between tokens instead of words.")
    flags.DEFINE_enum("set", "valid", ["valid", "test"], "confusion: the part of the data.")
    flags.DEFINE_string(
        "against",
        "step",
        "curves: the horizontal axis: step, train/tokens_total or train/flops_total.",
    )
    flags.DEFINE_list(
        "metrics",
        [],
        "curves: names such as valid/loss,valid/bleu, each in its own panel; default: losses, "
        "accuracies, learning rate, norms and all scores.",
    )


def main() -> None:
    from transformer_jax import pictures

    options, picture = cli.FLAGS, cli.command()
    _check_flags(options, picture)
    is_animated = picture == "animation"
    path = options.output or f"{picture}.{'gif' if is_animated else 'png'}"
    cli.check_output("output")
    pictures.check_ending(path, is_animated)
    draw = {
        "attention": attention,
        "animation": animation,
        "coreference": coreference,
        "neighbours": neighbours,
        "analogy": analogy,
        "vectors": vectors,
        "positions": positions,
        "masking": masking,
        "masks": masks,
        "result": result,
        "confusion": confusion,
        "curves": curves,
    }[picture]
    # Before the figure is made, because labels are placed for its size.
    with pictures.sized(_size(options)):
        figure = draw(options)
    if is_animated:
        pictures.save_animation(figure, path)
    else:
        pictures.save(figure, path, dpi=options.dpi)
    print(path)


def _size(options) -> tuple[float, float] | None:
    """Returns the width and the height of --size in inches, or None."""
    if not options.size:
        return None
    try:
        width, height = map(float, options.size)
    except ValueError:
        width = height = 0.0
    if not (0.5 <= width <= 100 and 0.5 <= height <= 100):
        raise UserError(
            f"--size={','.join(options.size)}: must be WIDTH,HEIGHT in inches, such as 3.4,2.5"
        )
    return width, height


def _check_flags(options, picture: str) -> None:
    """Raises UserError for a flag that the picture does not take."""
    own = _FLAGS[picture]
    # An animation has a size of its own.
    own = own if picture == "animation" else (*own, "size", "dpi")
    every = {flag for names in _FLAGS.values() for flag in names} | {"size", "dpi"}
    for name in sorted(every - set(own)):
        if options[name].present:
            takes = ", ".join(f"--{flag}" for flag in (*own, "output"))
            raise UserError(f"--{name}: not for {picture}, which takes {takes}")


def attention(options):
    from transformer_jax import pictures

    task, params, folder = _opened(options)
    (text,) = _texts(options, 1)
    kind = _kind(task, options.kind, folder)
    translates = "cross" in task.attentions
    if options.target is not None and (not translates or kind == "encoder"):
        raise UserError("--target: needs a translation, with --kind=cross or decoder")
    arguments = dict(kind=kind, target=options.target) if translates else {}
    weights = task.attention(params, text, pieces=options.pieces, **arguments)
    where = "from the translation to the source" if kind == "cross" else f"in the {kind}"
    return pictures.attention(weights, options.layer, options.head, f"attention {where}: {text}")


def animation(options):
    from transformer_jax import pictures

    task, params, folder = _opened(options)
    (text,) = _texts(options, 1)
    kinds = ("encoder", "decoder", "cross")
    if missing := [kind for kind in kinds if kind not in task.attentions]:
        raise UserError(f"{folder}: animation needs a Transformer that translates; no {missing[0]}")
    target = options.target
    if target is None:
        target = next(task.translate(params, [text], long="refuse"))[0].text
    weights = (task.attention(params, text, target, kind, pieces=True) for kind in kinds)
    return pictures.translation_steps(*weights, title=text)


def coreference(options):
    from transformer_jax import pictures
    from transformer_jax.pictures.progress import say

    task, params, folder = _opened(options)
    _check_attends(task, folder)
    # An encoder if there is one, because a decoder has not read the last word when it reads "it".
    kind = "encoder" if "encoder" in task.attentions else task.attentions[0]
    arguments = dict(kind=kind) if "cross" in task.attentions else {}
    weights = [
        (text, task.attention(params, text, **arguments)) for text in options.text or [TIRED, WIDE]
    ]
    if kind == "decoder":
        say(
            f"this model reads from left to right: the attention of {options.word!r} cannot "
            "depend on later words"
        )
    title = f'words that "{options.word}" attends to, {folder}'
    return pictures.attended_by(options.word, weights, title)


def neighbours(options):
    return model_pictures.neighbours(options, _folder(options))


def analogy(options):
    return model_pictures.analogy(options, _folder(options))


def vectors(options):
    return model_pictures.vectors(options, _folder(options))


def positions(options):
    if not options.workdir:
        return model_pictures.codes(options.kind, options.count, options.width)
    for name in ("kind", "count", "width"):
        if options[name].present:
            raise UserError(
                f"--{name} and --workdir: a run has its own positions; give one of them"
            )
    return model_pictures.positions(*_opened(options))


def masking(options):
    (text,) = _texts(options, 1)
    run = _opened(options) if options.workdir else ()
    return model_pictures.masking(text, options.draws, *run)


def masks(options):
    return model_pictures.masks()


def result(options):
    return model_pictures.result(options.text, *_opened(options))


def confusion(options):
    from transformer_jax import pictures

    task, params, folder = _opened(options, "data.valid_", "data.test_")
    scores = task.evaluate(params, options.set)
    if "confusion" not in scores:
        raise UserError(
            f"--workdir={folder}: a {task.config.task.name} run without labels; "
            "confusion needs a classification"
        )
    title = f"{folder}, {options.set}: accuracy {scores['accuracy']:.1%}"
    return pictures.confusion(**scores["confusion"], title=title)


def curves(options):
    from transformer_jax import pictures

    if not options.workdir:
        raise UserError("--workdir=... is missing: folder of a run; it may be repeated")
    runs = {}
    for folder in options.workdir:
        name = folder.rstrip("/").rpartition("/")[2] if len(options.workdir) > 1 else ""
        runs[name] = _metrics(folder, options)
    # Fewer names than folders: runs go by the last part of their folders, so that one of two equal
    # names has been lost.
    if len(runs) < len(options.workdir):
        raise UserError(
            "--workdir: two runs of the same name; their folders must differ in the last part"
        )
    # Without a title for several runs, because their names are in the legends.
    title = options.workdir[0] if len(options.workdir) == 1 else ""
    panels = {name: (name,) for name in options.metrics}
    return pictures.curves(runs, panels, options.against, title)


def _metrics(folder: str, options) -> list[dict]:
    """Returns the lines of a run's metrics.jsonl. Raises UserError if a requested metric is not
    there.
    """
    from transformer_jax.runs import spec
    from transformer_jax.storage import buckets

    path = buckets.folder_of_run(folder) / "metrics.jsonl"
    if not path.is_file():
        raise UserError(f"--workdir={folder}: no metrics.jsonl here")
    lines = spec.metrics(folder)
    known = sorted({name for line in lines for name in line})
    for flag, name in (
        ("against", options.against),
        *(("metrics", name) for name in options.metrics),
    ):
        if name not in known:
            raise UserError(f"--{flag}={name}: not in {path}; there are: {', '.join(known)}")
    return lines


def _opened(options, *allowed: str):
    """Returns (task, params, folder) of the only --workdir. Flags may set the keys `allowed`."""
    from transformer_jax.runs.open import open_run

    folder = _folder(options)
    overrides = cli.overrides(("decode.", "mesh.", *allowed))
    return *open_run(folder, options.step, overrides), folder


def _folder(options) -> str:
    """Returns the only --workdir."""
    if not options.workdir:
        raise UserError("--workdir=... is missing: folder of the run")
    if len(options.workdir) > 1:
        raise UserError("--workdir=... is given more than once: this picture is of one run")
    return options.workdir[0]


def _texts(options, count: int) -> list[str]:
    if not any(options.text):
        raise UserError("--text=... is missing: the text to look at")
    if len(options.text) != count or not all(text.strip() for text in options.text):
        raise UserError("--text=... is given more than once")
    return options.text


def _check_attends(task, folder: str) -> None:
    if not task.attentions:
        name = task.config.model.name
        raise UserError(f"{folder}: config.model.name={name!r} has no attention over a text")


def _kind(task, kind: str | None, folder: str) -> str:
    _check_attends(task, folder)
    if kind and kind not in task.attentions:
        raise UserError(
            f"--kind={kind}: {folder} has no such attention; there is: {', '.join(task.attentions)}"
        )
    return kind or task.attentions[0]


if __name__ == "__main__":
    cli.run(main, define_flags)
