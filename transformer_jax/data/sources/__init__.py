"""Readers of training data: documents, sentence pairs, labelled tables, TFDS sets, corpora."""
