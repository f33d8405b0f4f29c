"""Every block, written once. Models compose them.

Axis letters, in einsum strings and shape comments:
    B batch   L length (Q of queries, K of keys)   M d_model   H heads   D head_dim   F d_ff   V vocabulary
"""
