"""The keys of a model in Hugging Face's config.json, and those of `config.model`."""

import dataclasses

from ml_collections import ConfigDict

from transformer_jax.config import UserError


@dataclasses.dataclass(frozen=True)
class Keys:
    """The keys of one architecture's config.json."""

    # {key: key of config.model}; config.json must have them.
    required: dict[str, str]
    # {key: (key of config.model, default)}
    optional: dict[str, tuple[str, float]]
    # {key: values that our model computes, the default first}
    allowed: dict[str, tuple]
    # {key of config.model: its meaning}; only None has an equivalent
    absent: dict[str, str] = dataclasses.field(default_factory=dict)

    def changed(self, **additions: dict) -> "Keys":
        """Returns the keys with additions to its fields, in place of entries of the same name."""
        changes = {name: getattr(self, name) | added for name, added in additions.items()}
        return dataclasses.replace(self, **changes)

    def read(self, hf_config: dict) -> dict:
        """Returns the keys of config.model for the content of config.json.

        Raises UserError for a missing key, and for a value that our model does not compute.
        """
        missing = [key for key in self.required if key not in hf_config]
        if missing:
            raise UserError(f"no {' and no '.join(missing)}")
        for key, values in self.allowed.items():
            value = hf_config.get(key, values[0])
            if value not in values:
                supported = " or ".join(repr(value) for value in values if value is not None)
                raise UserError(f"{key}={value!r}: only {supported} is supported")
        model = {name: hf_config[key] for key, name in self.required.items()}
        for key, (name, default) in self.optional.items():
            model[name] = hf_config.get(key, default)
        return model

    def check(self, model: ConfigDict, architecture: str) -> None:
        """Raises UserError for a key of config.model whose value has no equivalent."""
        for key, meaning in self.absent.items():
            if model[key] is not None:
                raise UserError(f"config.model.{key}={model[key]}: {architecture} has no {meaning}")

    def write(self, model: ConfigDict) -> dict:
        """Returns the keys of config.json for config.model, and those that all our models share."""
        content = {key: model[name] for key, name in self.required.items()}
        for key, (name, _) in self.optional.items():
            content[key] = model[name]
        return content | {key: values[0] for key, values in self.allowed.items()}


def check_head_dim(model: ConfigDict, architecture: str) -> None:
    """Raises UserError unless the heads divide the width of the model."""
    if model.head_dim not in (None, model.d_model / model.num_heads):
        raise UserError(
            f"config.model.head_dim={model.head_dim}: {architecture} has only d_model / num_heads"
        )
