"""Tasks on proteins, one per file, whose names configs use."""
