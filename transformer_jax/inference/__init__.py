"""Uses of a trained model: sampling, beam search, scoring, filling, attention weights, prompts."""
