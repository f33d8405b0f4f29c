"""Heads on pre-trained models, their examples and batches."""
