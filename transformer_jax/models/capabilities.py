"""The capabilities that a family of models can declare in `can`, and their methods.

Words in `can`:
  token_types: `hidden` reads token types, whose number is the key `num_token_types`.
  pool: `pooled(hidden)` returns one vector for each row (B, M).
  fill: the logits of a position predict its own token, which the input hides.
  next_sentence: `next_logits(hidden)` returns the logits of next-sentence prediction (B, 2).
  detect: `detected(hidden)` returns the logits that tokens were replaced (B, L). A generator,
    which is a part of the model, replaces them: see models/electra.py.
  global: `hidden` reads the positions of global tokens, `global_positions` (B, N); -1 stands for
    none. They see the whole row, and all tokens see them.
  static: `vectors()` returns the vectors of the vocabulary (V, M). The embedding of a token, layer
    0, is its vector, and depends on no other token.
  codes: `autoencoded(images)` reconstructs images, `codes(images)` returns the code of each patch
    (B, N), and `images_of(codes)` the images uint8 of codes.
  contact: `contact_logits(maps)` returns the logits of contacts (B, P, P) between the residues of
    proteins, from corrected attention maps (B, P, P, layers * heads).
  cooccur: `log_counts(first, second)` returns the logarithms of the counts of pairs (B, N).
  write: `encode`, `begin` and `step` write texts by appended masks (models/cloze.py).
  attend: all layers have attention weights, in the stacks "encoder" and "decoder".
  cache: `cached` reads tokens into a key/value cache.
  carry: `initial_carry` and `advance` read tokens into a state, see models/causal.py.
  both_ways: `initial_carry` and `advance` read two texts, one of them backward, see models/elmo.py.
  permute: `permuted` predicts tokens in a permuted order, with a carry where the key
    `memory_length` is not 0, see models/xlnet.py.
"""

# The methods that a family with a capability must have.
METHODS = {
    "pool": ("pooled",),
    "next_sentence": ("next_logits",),
    "detect": (
        "detected",
        "generated",
        "generator_transformed",
        "generator_output",
        "detection_flops",
        "narrow",
        "narrow_params",
    ),
    "static": ("vectors",),
    "cooccur": ("log_counts",),
    "write": ("encode", "begin", "step"),
    "codes": ("autoencoded", "codes", "images_of"),
    "contact": ("contact_logits",),
    "cache": ("cached",),
    "carry": ("initial_carry", "advance"),
    "both_ways": ("initial_carry", "advance", "words_flops"),
    "permute": ("permuted", "initial_carry"),
}
