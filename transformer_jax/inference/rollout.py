"""Attention rollout: the share of each input in a state of the last layer."""

import numpy as np


def rollout(weights: np.ndarray) -> np.ndarray:
    """Returns the shares of the inputs (keys) in the states of the last layer, float32 (L, L).

    `weights` are the attention weights of all layers (layers, H, L, L). The weights of a layer are
    the mean over its heads, and half of a state is the residual branch (Abnar & Zuidema 2020,
    section 3). Each row sums to 1.
    """
    mean = weights.astype(np.float64).mean(axis=1)
    shares = np.eye(weights.shape[-1])
    for layer in 0.5 * mean + 0.5 * np.eye(weights.shape[-1]):
        shares = layer @ shares
    return (shares / shares.sum(axis=-1, keepdims=True)).astype(np.float32)


def of_patches(weights: np.ndarray, pools_class: bool) -> np.ndarray:
    """Returns the shares of the patches of a square image, float32 (G, G), which sum to 1.

    `weights` are those of a row of a class token and G^2 patches (layers, H, 1 + G^2, 1 + G^2). The
    shares are those in the state of the class token, or else in the mean of the other states.
    """
    shares = rollout(weights)
    shares = shares[0, 1:] if pools_class else shares[1:, 1:].mean(axis=0)
    side = round(len(shares) ** 0.5)
    return (shares / shares.sum()).reshape(side, side)
