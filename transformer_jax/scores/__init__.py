"""Scores of predictions: BLEU, F1, exact match and others."""
