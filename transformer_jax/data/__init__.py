"""The data pipeline: sources, tokenizers, the token store, and rows (windows, packing, masking)."""
