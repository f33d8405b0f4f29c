"""What a trained model is for: sampling, beam search, filling, in-context evaluation."""
