"""Names that models, tasks and keys of a config had in earlier versions.

The configs of recorded runs contain these names, and so may config files and commands. If the
values of a key changed as well, the table maps each old value to the new one.
"""

from collections.abc import Mapping
from typing import Any

# {section: {old name: new name}}
NAMES = {
    "model": {"lstm": "recurrent", "vq_autoencoder": "vqvae"},
    "task": {"code_lm": "image_token_lm", "image_codes": "vqvae"},
}
# {section: {name: {old key: new key, or (new key, {old value: new value})}}}
KEYS = {
    "model": {
        "esm": {"zero_masks": "token_dropout"},
        "wav2vec2": {"stable": ("norm_position", {False: "post", True: "pre"})},
    },
    "task": {
        "chat": {"marks": "special_tokens"},
        "ctc": {"silent": "feature_mask", "silent_span": "feature_mask_span"},
    },
}


def current(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a section with the current names and values of its keys, "name" included."""
    name = values.get("name")
    name = NAMES.get(section, {}).get(name, name)
    renamed = {}
    for key, value in values.items():
        new_key, new_value = current_key(section, name, key, value)
        renamed[new_key] = new_value
    return renamed | ({"name": name} if "name" in values else {})


def current_key(section: str, name: str, key: str, value: Any) -> tuple[str, Any]:
    """Returns the current name and value of a key, for the class `name` of a section."""
    new = KEYS.get(section, {}).get(name, {}).get(key, key)
    if isinstance(new, str):
        return new, value
    new, values = new
    # Compare as strings, because a value from the command line is a string.
    by_text = {str(old).lower(): each for old, each in values.items()}
    return new, by_text.get(str(value).lower(), value)
