"""Tasks on audio, one per file, whose names configs use."""
