"""Layers from which all models are composed.

Axis letters in einsum strings and shape comments:
    B  batch                    H  attention heads
    L  sequence length          D  head dimension
    Q  queries, K  keys         F  hidden width of the MLP
    S  source, T  target        V  vocabulary size
    M  model width              G  heads of keys and values
"""
