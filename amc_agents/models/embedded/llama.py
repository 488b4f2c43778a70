"""A Llama's forward pass in numpy: RMSNorm, rotary positions, grouped-query attention with a KV cache, SwiGLU.

Computes in float32; equal to transformers' `LlamaForCausalLM` up to 1e-5 (tests). Sequences are rows of one
preallocated array, so that a decoding step is a few batched matrix products without a loop over rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from amc_agents.concurrency.background import lock_across_forks
from amc_agents.errors import CheckpointError
from amc_agents.models.embedded.cache import KVRows
from amc_agents.models.embedded.weights import LlamaConfig, Weights, merge_adapter, read_as_saved, read_weights
from amc_agents.models.engine import Float32Array
from amc_agents.types import IntArray

# Added to the scores of masked positions; finite, so that no NaN can arise.
_HIDDEN_SCORE = np.float32(-1e9)


class _Layer(NamedTuple):
    """The matrices of one block, transposed for `x @ W`, with the gains of the norms folded in."""

    qkv: Float32Array
    """`[D, (heads + 2 kv_heads) head_dim]`; queries scaled, queries and keys permuted for the rotation."""
    out: Float32Array
    gate_up: Float32Array
    down: Float32Array


class NumpyLlama:
    """The forward pass of one Llama. Holds weights only, so threads may share it.

    Args:
        config: the shape.
        weights: tensors by their Hugging Face names.

    Raises:
        CheckpointError: a tensor is missing.
    """

    def __init__(self, config: LlamaConfig, weights: Weights) -> None:
        self.config = config
        try:
            self._layers = [_layer(config, weights, number) for number in range(config.layers)]
            self._embedding = np.ascontiguousarray(weights["model.embed_tokens.weight"])
            self._norm = weights["model.norm.weight"]
            head = None if config.tied else weights.get("lm_head.weight")
        except KeyError as error:
            raise CheckpointError(f"the model's weights lack the tensor {error}") from error
        if config.tied:
            head = self._embedding
        self._head = None if head is None else np.ascontiguousarray(head.T)
        score = weights.get("score.weight")
        self._score = None if score is None else np.ascontiguousarray(score.T)
        # One complex rotation per position and pair of dimensions: exp(i * position * frequency).
        frequency = config.rope_theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
        self._turns = np.exp(1j * np.outer(np.arange(config.context), frequency)).astype(np.complex64)

    @classmethod
    def load(cls, folder: str | Path, adapter: str | Path | None = None) -> NumpyLlama:
        """Read a model folder and, if given, merge the LoRA adapter of another folder.

        Raises:
            CheckpointError: a file is missing or damaged, or contradicts the other files.
        """
        weights = read_weights(folder)
        with read_as_saved(folder if adapter is None else adapter):
            if adapter is not None:
                weights = merge_adapter(weights, adapter)
            return cls(LlamaConfig.from_folder(folder), weights)

    def new_rows(self) -> KVRows:
        """Return empty rows for keys and values of this model."""
        shape = self.config
        return KVRows(shape.layers, shape.kv_heads, shape.head_dim, shape.context)

    def logits(self, hidden: Float32Array) -> Float32Array:
        """Return `[R, V]` next-token logits of `[R, D]` final hidden states."""
        if self._head is None:
            raise CheckpointError("this model has no language-model head (lm_head.weight)")
        with one_blas_thread():
            return np.asarray(hidden @ self._head)

    def scores(self, hidden: Float32Array) -> Float32Array:
        """Return the value head's output `[R]` on `[R, D]` final hidden states."""
        if self._score is None:
            raise CheckpointError("this model has no value head (score.weight): load it with its value adapter")
        return np.asarray(hidden @ self._score)[:, 0]

    def forward(self, tokens: IntArray, counts: IntArray, rows: KVRows, first: int) -> Float32Array:
        """Append tokens to consecutive rows and return the normed final hidden state of every token.

        Args:
            tokens: `[S]` the new tokens of all R rows, row after row.
            counts: `[R]` number of new tokens of each row, at least 1.
            rows: keys and values of past tokens; extended by those of the new tokens.
            first: index of the first of the R rows.

        Returns:
            `[S, D]` hidden states.
        """
        shape = self.config
        n_rows, widest = len(counts), int(counts.max())
        past = rows.lengths[first : first + n_rows]
        even = widest * n_rows == len(tokens)
        row_of = np.repeat(np.arange(n_rows), counts)
        offset = np.arange(len(tokens)) - np.repeat(np.cumsum(counts) - counts, counts)
        position = past[row_of] + offset
        length = int((past + counts).max())
        rows.reserve(first + n_rows, length)
        mask = _mask(past, widest, length)
        turns = self._turns[position][:, None, :]
        n_query, group = shape.heads * shape.head_dim, shape.heads // shape.kv_heads
        target = first + row_of
        x = self._embedding[tokens]
        # exp(-gate) may overflow to infinity; the quotient is then 0, which is correct.
        with one_blas_thread(), np.errstate(over="ignore"):
            for number, layer in enumerate(self._layers):
                qkv = self._rms(x) @ layer.qkv
                rotated = qkv[:, : n_query + shape.kv_heads * shape.head_dim].view(np.complex64)
                rotated.reshape(len(tokens), -1, shape.head_dim // 2)[...] *= turns
                rows.data[number][:, target, :, position] = qkv[:, n_query:].reshape(
                    -1, 2, shape.kv_heads, shape.head_dim
                )
                query = qkv[:, :n_query]
                if not even:
                    query = _spread(query, row_of, offset, (n_rows, widest))
                query = query.reshape(n_rows, widest, shape.kv_heads, group, shape.head_dim)
                past_kv = rows.data[number][:, first : first + n_rows, :, :length]
                mixed = _attend(query, past_kv[0], past_kv[1], mask).reshape(n_rows, widest, n_query)
                flat = mixed.reshape(-1, n_query) if even else mixed[row_of, offset]
                x += flat @ layer.out
                gate_up = self._rms(x) @ layer.gate_up
                gate, up = gate_up[:, : shape.intermediate], gate_up[:, shape.intermediate :]
                up *= gate
                up /= np.exp(-gate) + np.float32(1)
                x += up @ layer.down
        rows.lengths[first : first + n_rows] += counts
        return np.asarray(self._rms(x) * self._norm)

    def _rms(self, x: Float32Array) -> Float32Array:
        mean_square = np.einsum("ij,ij->i", x, x) / np.float32(self.config.hidden)
        return np.asarray(x * (1 / np.sqrt(mean_square + np.float32(self.config.norm_eps)))[:, None])


def _attend(query: Float32Array, keys: Float32Array, values: Float32Array, mask: Float32Array | None) -> Float32Array:
    """Compute scaled dot-product attention; queries are already scaled.

    Args:
        query: `[R, n, kv_heads, group, head_dim]`.
        keys: `[R, kv_heads, length, head_dim]`.
        values: `[R, kv_heads, length, head_dim]`.
        mask: `[R, 1, 1, n, length]`, or None if no position is masked.

    Returns:
        `[R, n, kv_heads, group, head_dim]`.
    """
    n_rows, n, kv_heads, group, head_dim = query.shape
    stacked = query.transpose(0, 2, 3, 1, 4).reshape(n_rows, kv_heads, group * n, head_dim)
    scores = stacked @ keys.swapaxes(-1, -2)
    if mask is not None:
        by_query = scores.reshape(n_rows, kv_heads, group, n, -1)
        by_query += mask
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    mixed = scores @ values
    mixed /= scores.sum(axis=-1, keepdims=True)
    return np.asarray(mixed.reshape(n_rows, kv_heads, group, n, head_dim).transpose(0, 3, 1, 2, 4), dtype=np.float32)


def _mask(past: IntArray, widest: int, length: int) -> Float32Array | None:
    """Return the causal mask `[R, 1, 1, n, length]` to add to the scores, or None if no position is masked."""
    if widest == 1 and (past + 1 == length).all():
        return None
    last_visible = past[:, None] + np.arange(widest)
    hidden = np.arange(length) > last_visible[:, :, None]
    return np.where(hidden, _HIDDEN_SCORE, np.float32(0)).astype(np.float32)[:, None, None]


def _spread(flat: Float32Array, row_of: IntArray, offset: IntArray, shape: tuple[int, int]) -> Float32Array:
    """Return the tokens of each row as `[R, n, ...]`, padded with zeros to the widest row."""
    padded = np.zeros((*shape, flat.shape[-1]), dtype=np.float32)
    padded[row_of, offset] = flat
    return padded


def _layer(config: LlamaConfig, weights: Weights, number: int) -> _Layer:
    name = f"model.layers.{number}."
    scale = np.float32(config.head_dim**-0.5)
    query = _paired(weights[name + "self_attn.q_proj.weight"] * scale, config.head_dim)
    key = _paired(weights[name + "self_attn.k_proj.weight"], config.head_dim)
    qkv = np.concatenate([query, key, weights[name + "self_attn.v_proj.weight"]])
    gate_up = np.concatenate([weights[name + "mlp.gate_proj.weight"], weights[name + "mlp.up_proj.weight"]])
    return _Layer(
        qkv=np.ascontiguousarray((qkv * weights[name + "input_layernorm.weight"]).T),
        out=np.ascontiguousarray(weights[name + "self_attn.o_proj.weight"].T),
        gate_up=np.ascontiguousarray((gate_up * weights[name + "post_attention_layernorm.weight"]).T),
        down=np.ascontiguousarray(weights[name + "mlp.down_proj.weight"].T),
    )


def _paired(weight: Float32Array, head_dim: int) -> Float32Array:
    """Reorder dimensions so that i and i + head_dim/2, which are rotated together, are adjacent.

    A pair is then one complex number, and its rotation one complex product. Queries and keys are permuted alike, so
    their dot products do not change.
    """
    halves = weight.reshape(-1, 2, head_dim // 2, weight.shape[-1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


# (prefix, suffix) of the library's symbols, which depend on its build; numpy's own wheels use the first pair.
_SPELLINGS = (("scipy_", "64_"), ("", "64_"), ("scipy_", ""), ("", ""))


class _OpenBlas(NamedTuple):
    get_threads: Callable[[], int]
    set_threads: Callable[[int], None]


_lock = lock_across_forks()
_users = 0
_before = 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit OpenBLAS to the calling thread, as long as any thread is inside such a block."""
    global _users, _before
    library = _openblas()
    if library is None:
        yield
        return
    with _lock:
        if _users == 0:
            _before = library.get_threads()
            if _before > 1:
                library.set_threads(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _before > 1:
                library.set_threads(_before)


@cache
def _openblas() -> _OpenBlas | None:
    """Return the OpenBLAS that numpy's wheel contains, or None if numpy uses another library."""
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            # numpy has already loaded the library, so this returns the same instance.
            library = ctypes.CDLL(str(path))
            for prefix, suffix in _SPELLINGS:
                get_threads = getattr(library, f"{prefix}openblas_get_num_threads{suffix}", None)
                set_threads = getattr(library, f"{prefix}openblas_set_num_threads{suffix}", None)
                if get_threads is not None and set_threads is not None:
                    set_threads.restype = None
                    return _OpenBlas(get_threads, set_threads)
    return None
