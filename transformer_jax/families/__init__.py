"""The model families. Each file holds one family, composed of `layers`, and its conversions."""
