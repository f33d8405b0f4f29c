"""From text to rows: sources, tokenizers, the token store, windows, packing, masking."""
