"""Pictures of what a model does and has learned, as a PNG file: python -m transformer_jax.inspect
attention --workdir=DIR --text="..." --output=FILE.png

attention     what the words of --text attend to: all layers and heads; --layer=2: its heads, with
the words; --layer=2 --head=3: one alone coreference   what "it" attends to in "The animal didn't
cross the street because it was too tired" and "... too wide"; --text (twice) and --word ask for
others positions     the vectors of the run's positions; without --workdir the sinusoids of Vaswani
et al. 2017. Learned ones are compared by their cosines masks         which keys a query sees:
causal, padding, packed, local confusion     classification: how often each label of --set was
predicted as each curves        learning curves of one --workdir or several together, from their
metrics.jsonl
"""

from absl import flags

from transformer_jax.cli import flags as cli
from transformer_jax.cli import process
from transformer_jax.config import UserError

# Uszkoreit 2017
TIRED, WIDE = (
    f"The animal didn't cross the street because it was too {word}." for word in ("tired", "wide")
)

_USES = {  # the flags each picture knows beside --output
    "attention": ("workdir", "step", "text", "target", "kind", "layer", "head", "pieces"),
    "coreference": ("workdir", "step", "text", "word"),
    "positions": ("workdir", "step"),
    "masks": (),
    "confusion": ("workdir", "step", "set"),
    "curves": ("workdir", "against", "metrics"),
}


def define_flags() -> None:
    cli.define_commands(*_USES)
    cli.define_workdir(multiple=True)
    cli.define_step()
    flags.DEFINE_string("output", None, "PNG file to write; default PICTURE.png.")
    flags.DEFINE_multi_string("text", [], "A text; for coreference two or more.")
    flags.DEFINE_string(
        "target", None, "Translation: what --text has become; default: the model's own translation."
    )
    flags.DEFINE_string("kind", None, "Translation: cross (the default), encoder or decoder.")
    flags.DEFINE_integer("layer", None, "From 1.", lower_bound=1)
    flags.DEFINE_integer("head", None, "From 1.", lower_bound=1)
    flags.DEFINE_string("word", "it", "coreference: the word that refers to another.")
    flags.DEFINE_bool("pieces", False, "attention: by tokens, not by words.")
    flags.DEFINE_enum("set", "valid", ["valid", "test"], "confusion: which examples.")
    flags.DEFINE_string(
        "against",
        "step",
        "curves: what they are drawn against: step, train/tokens_total, train/flops_total.",
    )
    flags.DEFINE_list(
        "metrics",
        [],
        "curves: names such as valid/loss,valid/bleu, a panel each; default: "
        "losses, accuracies, learning rate, norms and all scores.",
    )


def main() -> None:
    from transformer_jax import pictures

    options, picture = cli.FLAGS, cli.command()
    for name in sorted(
        {flag for flags_ in _USES.values() for flag in flags_} - set(_USES[picture])
    ):
        if options[name].present:
            raise UserError(
                f"--{name}: not for {picture}, which takes {', '.join(f'--{flag}' for flag in (*_USES[picture], 'output'))}"
            )
    path = options.output or f"{picture}.png"
    cli.check_output("output")
    draw = {
        "attention": attention,
        "coreference": coreference,
        "positions": positions,
        "masks": masks,
        "confusion": confusion,
        "curves": curves,
    }[picture]
    pictures.save(draw(options), path)
    print(path)


def attention(options):
    from transformer_jax import pictures

    task, params, folder = _opened(options)
    (text,) = _texts(options, 1)
    kind = _kind(task, options.kind, folder)
    if options.target is not None and ("cross" not in task.attentions or kind == "encoder"):
        raise UserError("--target: only for what a translation attends to, --kind=cross or decoder")
    translation = dict(kind=kind, target=options.target) if "cross" in task.attentions else {}
    what = "from the translation to the source" if kind == "cross" else f"in the {kind}"
    return pictures.attention(
        task.attention(params, text, pieces=options.pieces, **translation),
        options.layer,
        options.head,
        f"attention {what}: {text}",
    )


def coreference(options):
    from transformer_jax import pictures
    from transformer_jax.pictures.progress import say

    task, params, folder = _opened(options)
    texts = options.text or [TIRED, WIDE]
    kind = "encoder" if "encoder" in task.attentions else task.attentions[0]
    found = [
        (
            text,
            task.attention(params, text, **(dict(kind=kind) if "cross" in task.attentions else {})),
        )
        for text in texts
    ]
    if kind == "decoder":
        say(
            f"this model reads from left to right: what {options.word!r} attends to can't depend on the words behind it"
        )
    return pictures.attended_by(options.word, found, f'what "{options.word}" attends to, {folder}')


def positions(options):
    import numpy as np

    from transformer_jax import pictures
    from transformer_jax.layers.embeddings import sinusoids

    if not options.workdir:
        return pictures.positions(
            np.asarray(sinusoids(np.arange(100), 128)),
            "sinusoids (Vaswani et al. 2017, section 3.5): 100 positions, d_model 128",
        )
    task, params, folder = _opened(options)
    if "position_embed" in params:
        return pictures.similarity(
            np.asarray(params["position_embed"]["embedding"], np.float32),
            f"learned positions, {folder}",
        )
    length, width = min(task.model.max_length, 256), task.model.d_model
    return pictures.positions(
        np.asarray(sinusoids(np.arange(length), width)),
        f"sinusoids of {folder}: {length} positions, d_model {width}",
    )


def masks(options):
    import jax.numpy as jnp
    import numpy as np

    from transformer_jax import pictures
    from transformer_jax.layers.masks import Mask

    length = 12
    padding, packed = jnp.array([[1] * 8 + [0] * 4]), jnp.array([[1] * 5 + [2] * 4 + [3] * 3])
    shown = {
        "causal": Mask(causal=True),
        "padding: 8 tokens of 12": Mask(key_segments=padding),
        "packed: 5 + 4 + 3 tokens": Mask(query_segments=packed, key_segments=packed),
        "packed and causal": Mask(causal=True, query_segments=packed, key_segments=packed),
        "local: a window of 4": Mask(causal=True, window=jnp.int32(4)),
    }
    return pictures.masks(
        {
            name: np.broadcast_to(mask.dense(length, length)[0, 0], (length, length))
            for name, mask in shown.items()
        },
        "which keys a query sees (dark)",
    )


def confusion(options):
    from transformer_jax import pictures

    task, params, folder = _opened(options, "data.valid_", "data.test_")
    found = task.evaluate(params, options.set)
    if "confusion" not in found:
        raise UserError(
            f"--workdir={folder}: a {task.config.task.name} run without labels; "
            "confusion is of a classification"
        )
    title = f"{folder}, {options.set}: accuracy {found['accuracy']:.1%}"
    return pictures.confusion(**found["confusion"], title=title)


def curves(options):
    from transformer_jax import pictures
    from transformer_jax.runs import record
    from transformer_jax.storage import buckets

    if not options.workdir:
        raise UserError("--workdir=... is missing: folder of a run; it may be given several times")
    runs = {}
    for folder in options.workdir:
        path = buckets.folder_of_run(folder) / "metrics.jsonl"
        if not path.is_file():
            raise UserError(f"--workdir={folder}: no metrics.jsonl here")
        runs[folder.rstrip("/").rpartition("/")[2] if len(options.workdir) > 1 else ""] = lines = (
            record.metrics(folder)
        )
        known = sorted({name for line in lines for name in line})
        for flag, name in (
            ("against", options.against),
            *(("metrics", name) for name in options.metrics),
        ):
            if name not in known:
                raise UserError(f"--{flag}={name}: not in {path}; there are: {', '.join(known)}")
    if len(runs) < len(options.workdir):
        raise UserError(
            "--workdir: two runs of the same name; their folders must differ in the last part"
        )
    # The names of several runs stand in the legends.
    title = options.workdir[0] if len(options.workdir) == 1 else ""
    panels = {name: (name,) for name in options.metrics}
    return pictures.curves(runs, panels, options.against, title)


def _opened(options, *allowed: str):
    """(task, parameters, the run's folder) of the one --workdir; `allowed`: keys to override."""
    from transformer_jax.runs.open import open_run

    if len(options.workdir) != 1:
        raise UserError(
            f"--workdir=... {'is missing: folder of the run' if not options.workdir else 'is given more than once: this picture is of one run'}"
        )
    folder, overrides = options.workdir[0], cli.overrides(("decode.", *allowed))
    return *open_run(folder, options.step, overrides), folder


def _texts(options, count: int) -> list[str]:
    if len(options.text) != count or not all(text.strip() for text in options.text):
        raise UserError(
            f"--text=... {'is missing: the text to look at' if not any(options.text) else 'is given more than once'}"
        )
    return options.text


def _kind(task, asked: str | None, folder: str) -> str:
    if asked and asked not in task.attentions:
        raise UserError(
            f"--kind={asked}: {folder} has no such attention; there is: {', '.join(task.attentions)}"
        )
    return asked or task.attentions[0]


if __name__ == "__main__":
    process.run(main, define_flags)
