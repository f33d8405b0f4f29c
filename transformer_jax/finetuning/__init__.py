"""Heads on pre-trained models, with their examples, batches and predictions."""
