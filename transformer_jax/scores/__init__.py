"""Evaluation scores: BLEU, ROUGE, F1, exact match, word error rate and others."""
