"""Score all states of whole trajectories in one forward pass.

Prompts are append-only and attention is causal, so the score at the mark of a state is the score of that prefix alone.
A trajectory of T + 1 states costs one pass over its tokens instead of T + 1 passes over growing prefixes. The gradient
of a sum over marks is the sum of the gradients of the separate passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import Any

from amc_agents.errors import ConfigurationError, MissingExtra

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


def scores_at_marks(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Compute the raw scores at the marks of a batch, in one forward pass.

    The pass goes through the `forward` of the outermost module, which data-parallel wrappers require. Only the
    innermost module, the classifier, reads other positions than the last.

    Args:
        model: a sequence classifier with a `score` head, plain or wrapped (PEFT, DDP, FSDP).
        batch: from `loader.collate`, on any device.

    Returns:
        `[M]` scores, float32 (float64 for a float64 model).
    """
    inner = classifier(model)
    read_at_marks(inner)
    device = inner.device
    inputs = {name: batch[name].to(device, non_blocking=True) for name in _INPUTS if name in batch}
    scores: Tensor = model(**inputs, **_varlen(inner, inputs))["logits"]
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def classifier(model: Any) -> Any:
    """Return the sequence classifier inside its wrappers.

    Raises:
        ConfigurationError: no module has a `score` head over a transformer.
    """
    for module in model.modules():
        children = dict(module.named_children())
        if "score" in children and getattr(module, "base_model_prefix", "") in children:
            return module
    raise ConfigurationError(
        f"{type(model).__name__} has no `score` head over a causal transformer: use a decoder-only base model"
    )


def read_at_marks(inner: Any) -> None:
    """Extend a classifier's `forward` to score the marks that it is given. Without marks it is unchanged."""
    if not hasattr(inner, "forward_at_last_token"):
        inner.forward_at_last_token = inner.forward
        inner.forward = MethodType(_forward, inner)


def _forward(
    self: Any, *args: Any, mark_rows: Tensor | None = None, mark_columns: Tensor | None = None, **kwargs: Any
) -> Any:
    if mark_rows is None or mark_columns is None:
        return self.forward_at_last_token(*args, **kwargs)
    transformer = getattr(self, self.base_model_prefix)
    # Wrappers add arguments of None, which not every transformer accepts.
    arguments = {name: value for name, value in kwargs.items() if value is not None and name != "return_dict"}
    hidden = transformer(**arguments, use_cache=False).last_hidden_state
    # The head is applied only to the marks, [M, D] instead of [B, S, D].
    return {"logits": self.score(hidden[mark_rows, mark_columns]).squeeze(-1)}


def _varlen(inner: Any, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return where the trajectories of a packed row begin, for variable-length kernels: once, not in every layer."""
    implementation = inner.config.get_text_config()._attn_implementation or ""
    if "position_ids" not in inputs or "flash" not in implementation:
        return {}
    positions = inputs["position_ids"][0]
    starts = (positions == 0).nonzero().squeeze(-1)
    bounds = torch.cat([starts, starts.new_tensor([len(positions)])]).to(torch.int32)
    longest = int(positions.max()) + 1
    return {
        "cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest
    }  # fmt: skip


_INPUTS = ("input_ids", "position_ids", "mark_rows", "mark_columns")
"""Tensors of a batch that go into the model; the others are for the loss."""
