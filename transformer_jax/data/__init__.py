"""The data pipeline: sources, tokenizers, the token store, and rows (windows, packing, masking)."""

__all__ = ["write"]


def __getattr__(name):
    if name == "write":
        # Imported here, because the modules of this folder are imported one by one.
        from transformer_jax.data.given import write

        return write
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
