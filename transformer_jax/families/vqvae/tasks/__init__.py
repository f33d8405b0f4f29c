"""Tasks on image tokens, one per file, whose names configs use."""
