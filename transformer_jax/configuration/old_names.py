"""Models, tasks and keys of a config under the names that they had in earlier versions.

The configs of recorded runs have these names, and so may config files and commands. A key whose
values changed, too, gives the new value of each old one.
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
    """Returns the keys of a section with their present names and values; "name" is among them."""
    name = values.get("name")
    name = NAMES.get(section, {}).get(name, name)
    renamed = {}
    for key, value in values.items():
        new_key, new_value = current_key(section, name, key, value)
        renamed[new_key] = new_value
    return renamed | ({"name": name} if "name" in values else {})


def current_key(section: str, name: str, key: str, value: Any) -> tuple[str, Any]:
    """Returns the present name and value of a key of the class `name` of a section."""
    new = KEYS.get(section, {}).get(name, {}).get(key, key)
    if isinstance(new, str):
        return new, value
    new, values = new
    # A value of the command line is a string.
    by_text = {str(old).lower(): each for old, each in values.items()}
    return new, by_text.get(str(value).lower(), value)
