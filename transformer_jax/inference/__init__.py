"""Inference with a trained model: sampling, beam search, scoring, masked tokens and features."""
