"""Published models by their names on the Hugging Face Hub.

A name is MODEL or OWNER/MODEL, such as "distilbert-base-uncased", and may end in @REVISION: a
branch, a tag or a commit. The library huggingface_hub downloads the files, keeps them in its cache
and reads its own environment variables, such as HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE.
"""

import fnmatch
import pathlib
import re
from importlib import metadata

from packaging.version import Version

from transformer_jax.config import UserError
from transformer_jax.storage import buckets

# Only these files are downloaded. Repositories hold the weights in several formats, and those that
# are pickled could run code.
CONFIG = ("config.json",)
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "encoder.json",
    "vocab.bpe",
    "vocab.txt",
    "spiece.model",
    "tokenizer.model",
    "source.spm",
    "target.spm",
    "target_vocab.json",
)
MODEL = (
    *CONFIG,
    *TOKENIZER,
    "preprocessor_config.json",
    "processor_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*.safetensors",  # the shards of large models
)
# Read only where torch is installed: see huggingface/tensors.py.
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin")
ADAPTERS = ("adapter_config.json", "adapter_model.safetensors")
# Paths such as ./model, ~/model and a/b/model are no names.
_NAME = re.compile(r"(?P<model>(?:\w[\w.-]*/)?\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?")


def folder(name, files: tuple[str, ...]) -> "pathlib.Path | buckets.Path":
    """Returns the folder with a model's files: `name` itself, or else the copy of a published one.

    `name` is the path of a folder or the name of a model on the hub, of which only the files that
    match the patterns `files` are downloaded, unless they are in the cache. What is neither is
    returned as a path. Raises UserError for a name that cannot be loaded.
    """
    published = _NAME.fullmatch(str(name))
    path = buckets.path(name)
    if published is None or path.exists():
        return path
    # Imported here, because hardly any program needs it.
    from huggingface_hub import constants, errors, snapshot_download

    hub, model, revision = constants.ENDPOINT, published["model"], published["revision"]
    missing = f"{name}: no such folder, and"
    try:
        copy = snapshot_download(model, revision=revision, allow_patterns=[*files])
        if _lacks_weights(copy, files) and reads_torch_files():
            patterns = [*files, *_PICKLED]
            copy = snapshot_download(model, revision=revision, allow_patterns=patterns)
    except errors.HFValidationError:  # no name that a model can have
        return path
    except errors.GatedRepoError:
        raise UserError(
            f"{name}: its owner grants access at {hub}/{model}; then set HF_TOKEN to a token of "
            f"{hub}/settings/tokens"
        ) from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{missing} no such model on {hub}; for a private one, set HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{name}: {hub}/{model} has no revision {revision!r}") from None
    except errors.LocalEntryNotFoundError as error:
        if constants.HF_HUB_OFFLINE:
            raise UserError(
                f"{missing} not all of its files are in the cache {constants.HF_HUB_CACHE}; "
                "unset HF_HUB_OFFLINE to download them"
            ) from None
        raise UserError(
            f"{missing} no network to look for a model of this name: {hub} can't be reached "
            f"({_reason(error.__cause__ or error)})"
        ) from None
    # All others, because the library passes on the errors of its HTTP client, and its releases have
    # different clients.
    except Exception as error:
        raise UserError(
            f"{name}: the download from {hub} broke off ({_reason(error)}); the same command "
            "downloads what is missing"
        ) from None
    if _lacks_weights(copy, files):
        raise UserError(
            f"{name}: no model.safetensors on {hub}; weights in other files are pickled, can run "
            "code and are not read. Save it as safetensors with transformers' save_pretrained, or "
            "install torch 2.6 or newer, which reads the tensors of a pytorch_model.bin without "
            "running code"
        )
    return pathlib.Path(copy)


def reads_torch_files() -> bool:
    """Returns whether there is a torch that reads the tensors of a file and executes nothing.

    Before 2.6, its option `weights_only` could be led to execute code (CVE-2025-32434).
    """
    try:
        return Version(metadata.version("torch")) >= Version("2.6")
    except metadata.PackageNotFoundError:
        return False


def _lacks_weights(folder: str, files: tuple[str, ...]) -> bool:
    """Returns whether weights are among the patterns `files`, and none are in the folder."""
    names = [path.name for path in pathlib.Path(folder).iterdir()]
    kinds = ("model*.safetensors", "pytorch_model*.bin")
    found = any(fnmatch.fnmatch(name, kind) for name in names for kind in kinds)
    return "model.safetensors" in files and not found


def _reason(error: BaseException) -> str:
    """Returns the first line of an error's message, or its class."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
