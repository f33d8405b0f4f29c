"""Readers of training data: documents, sentence pairs, labeled tables, TFDS sets, corpora."""
