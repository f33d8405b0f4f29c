"""Tasks on word vectors, one per file, whose names configs use."""
