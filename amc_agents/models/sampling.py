"""Draw tokens for a batch, with one uniform number per row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from amc_agents.models.engine import Float32Array
from amc_agents.types import FloatArray, IntArray


def choose(logits: Float32Array, temperature: FloatArray, top_p: FloatArray, uniform: FloatArray) -> IntArray:
    """Draw one token per row by inverting the cumulative distribution at the row's uniform number.

    A row's token depends only on its logits and its number. Logits differ in their last bits (1e-6) between batch
    shapes; a token changes with them only if the uniform number falls that close to a boundary.

    Args:
        logits: `[B, V]`.
        temperature: `[B]`; 0 selects the likeliest token.
        top_p: `[B]` in (0, 1].
        uniform: `[B]` in [0, 1).

    Returns:
        `[B]` token ids.
    """
    greedy = temperature == 0
    if greedy.all():
        return np.asarray(np.argmax(logits, axis=-1))
    scale = np.where(greedy, 1.0, temperature).astype(np.float32)
    weights = np.exp((logits - logits.max(axis=-1, keepdims=True)) / scale[:, None])
    if (top_p < 1).any():
        weights = _nucleus(weights, top_p)
    cumulative = np.cumsum(weights, axis=-1, dtype=np.float64)
    total = cumulative[:, -1]
    # The strict comparison below never draws a token of weight 0, and the cap ensures this when u * total rounds up.
    target = np.minimum(uniform * total, np.nextafter(total, 0))
    tokens = (cumulative <= target[:, None]).sum(axis=-1)
    if greedy.any():
        tokens = np.where(greedy, np.argmax(logits, axis=-1), tokens)
    return np.asarray(tokens)


def _nucleus(weights: Float32Array, top_p: FloatArray) -> Float32Array:
    """Set the weights `[B, V]` of all tokens outside the smallest set with mass `top_p` to 0."""
    order = np.argsort(-weights, axis=-1, kind="stable")
    ranked = np.take_along_axis(weights, order, axis=-1).astype(np.float64)
    before = np.cumsum(ranked, axis=-1) - ranked
    # No mass precedes the likeliest token, so at least one token is always kept.
    keep = before < top_p[:, None] * ranked.sum(axis=-1, keepdims=True)
    kept = np.zeros_like(weights)
    np.put_along_axis(kept, order, np.where(keep, ranked, 0.0).astype(np.float32), axis=-1)
    return kept


def log_softmax(logits: Float32Array) -> npt.NDArray[np.float64]:
    """Return natural log-probabilities `[B, V]` at temperature 1."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), dtype=np.float64)
