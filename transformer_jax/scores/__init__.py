"""BLEU, F1 and their like: how good predictions are."""
