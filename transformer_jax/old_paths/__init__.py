"""Modules under the names that they had.

Importing one warns, and gives the names of the module that has its content now. `MOVED` lists them;
a module whose content went to several others is a file in this folder.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings

_PACKAGE = "transformer_jax"
MOVED = {  # without the name of the package
    "attended": "pictures.attended",
    "cli.key_help": "cli.help",
    "data.grammar.lexicon.names": "data.grammar.lexicon.places",
    "data.masked_spans": "data.speech_rows",
    "data.noise.visible": "data.noise.composition",
    "data.sources.recipes": "data.sources.documents",
    "data.store.columns": "data.store.tokens",
    "data.store.limit": "data.store.cache",
    "data.tokenizers.albert": "data.tokenizers.unigram",
    "data.tokenizers.published_bpe": "data.tokenizers.bpe",
    "data.tokenizers.spelled": "data.tokenizers.words",
    "data.tokenizers.t5": "data.tokenizers.unigram",
    "data.tokenizers.xlnet": "data.tokenizers.unigram",
    "decoding": "inference",
    "decoding.sampling": "inference.sampling",
    "distributed.stop_point": "distributed.hosts",
    "finetuning.checks": "finetuning.base",
    "finetuning.definition": "finetuning.base",
    "finetuning.outputs": "finetuning.base",
    "inference.constraints": "inference.beam_search",
    "inference.dialogue": "inference.causal",
    "inspect": "draw",  # the name of a module of the standard library
    "models.capabilities": "models.model",
    "models.growing": "models.model",
    "models.reading": "models.model",
    "sharding": "distributed.sharding",
    "tasks.descent": "tasks.word_vectors",
    "training.pace": "training.updates",
    "training.schedule": "training.optimizer",
    "training.two_programs": "training.step",
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the old names where no other finder has found a module."""

    def find_spec(self, name, path=None, target=None):
        package, _, old = name.partition(".")
        if package != _PACKAGE or old not in MOVED:
            return None
        is_package = any(other.startswith(f"{old}.") for other in MOVED)
        return importlib.machinery.ModuleSpec(name, self, is_package=is_package)

    def exec_module(self, module) -> None:
        name = f"{_PACKAGE}.{MOVED[module.__name__.partition('.')[2]]}"
        content = importlib.import_module(name)
        warnings.warn(f"{module.__name__} is now {name}", DeprecationWarning, stacklevel=2)
        names = [each for each in vars(content) if not each.startswith("__")]
        vars(module).update({each: getattr(content, each) for each in names})

    def get_code(self, name):
        """Returns what `python -m transformer_jax.inspect` runs."""
        new = f"{_PACKAGE}.{MOVED[name.partition('.')[2]]}"
        program = f"import runpy; runpy.run_module({new!r}, run_name='__main__', alter_sys=True)"
        return compile(program, name, "exec")


def install() -> None:
    sys.meta_path.append(_Finder())
