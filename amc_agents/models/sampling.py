"""Draw tokens for a whole batch, one uniform number per row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from amc_agents.models.engine import Float32Array
from amc_agents.types import FloatArray, IntArray


def choose(logits: Float32Array, temperature: FloatArray, top_p: FloatArray, uniform: FloatArray) -> IntArray:
    """One token per row, by inverting the distribution function at the row's own uniform number.

    A row's choice depends on its logits and its number alone. Logits differ in their last bits (1e-6) between batch
    shapes; a choice changes with them only where the uniform number falls that close to a boundary.

    Args:
        logits: `[B, V]`.
        temperature: `[B]`, 0 for the likeliest token.
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
    # The strict comparison below never picks a token of weight 0; the cap keeps it so when u * total rounds up.
    target = np.minimum(uniform * total, np.nextafter(total, 0))
    tokens = (cumulative <= target[:, None]).sum(axis=-1)
    if greedy.any():
        tokens = np.where(greedy, np.argmax(logits, axis=-1), tokens)
    return np.asarray(tokens)


def _nucleus(weights: Float32Array, top_p: FloatArray) -> Float32Array:
    """`[B, V]` weights with all tokens outside the smallest set of mass `top_p` set to 0."""
    order = np.argsort(-weights, axis=-1, kind="stable")
    ranked = np.take_along_axis(weights, order, axis=-1).astype(np.float64)
    before = np.cumsum(ranked, axis=-1) - ranked
    # The likeliest token has nothing before it, so at least one is always kept.
    keep = before < top_p[:, None] * ranked.sum(axis=-1, keepdims=True)
    kept = np.zeros_like(weights)
    np.put_along_axis(kept, order, np.where(keep, ranked, 0.0).astype(np.float32), axis=-1)
    return kept


def log_softmax(logits: Float32Array) -> npt.NDArray[np.float64]:
    """`[B, V]` natural log-probabilities of the model at temperature 1."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), dtype=np.float64)
