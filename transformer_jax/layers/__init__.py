"""The blocks of all models, each written once. The models compose them.

Axis letters in einsum strings and shape comments:
    B  batch                    H  attention heads
    L  length of a row          D  width of a head
    Q  queries, K  keys         F  width of the MLP's hidden layer
    S  source, T  target        V  vocabulary
    M  width of the model
"""
