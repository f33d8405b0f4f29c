"""Fine-tuning of a head on a pre-trained model: examples, batches, losses and predictions."""
