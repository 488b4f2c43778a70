"""Score all states of whole trajectories in one forward pass: the scores, their loss, and checks of the model.

Prompts are append-only and attention is causal, so the score at the mark of a state is the score of that prefix alone.
A trajectory of T + 1 states costs one pass over its tokens instead of T + 1 passes over growing prefixes. The gradient
of a sum over marks is the sum of the gradients of the separate passes.

Whether that holds for this model, kernel and machine is checked with a few tokens: whether attention is causal, whether
dropout is off, which token the classifier pools, and whether packed trajectories attend to each other. The model's name
decides nothing. `M` is the number of marks (scored states) of a batch. The states of a row are consecutive.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any, Literal

from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.training.settings import Objective
from amc_agents.training.value.batches import collate
from amc_agents.training.value.rows import TargetRow

try:
    import torch
    from torch import Tensor
    from torch.nn import functional
    from transformers import integrations
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


def scores_at_marks(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Compute the raw scores at the marks of a batch, in one forward pass.

    The pass goes through the `forward` of the outermost module, which data-parallel wrappers require. Only the
    innermost module, the classifier, reads other positions than the last.

    Args:
        model: a sequence classifier with a `score` head, plain or wrapped (PEFT, DDP, FSDP).
        batch: from `collate`, on any device.

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


def loss(scores: Tensor, batch: Mapping[str, Tensor], objective: Objective) -> Tensor:
    """Return the sum of the losses of all marks, to be divided by the marks of the whole (global) batch.

    Args:
        scores: `[M]` float32 scores at the marks.
        batch: `targets` and `weights`, each `[M]` (`collate`).
        objective: the loss.

    Returns:
        A scalar. Its gradient is that of the scores; targets have no gradient.
    """
    targets, weights = batch["targets"].to(scores), batch["weights"].to(scores)
    if objective.loss == "bce":
        return functional.binary_cross_entropy_with_logits(scores, targets, weight=weights, reduction="sum")
    return (weights * (scores - targets) ** 2).sum()


frameworks: Any = integrations


def has_weights() -> bool:
    """Return whether a loaded model has its weights.

    With FSDP's `cpu_ram_efficient_loading`, only one process per machine has them until training begins.
    """
    return not frameworks.is_fsdp_enabled()


def check_one_pass(model: Any) -> None:
    """Refuse a model whose scores in one pass differ from the scores that its classifier gives the prefixes.

    A model without weights is not checked.

    Args:
        model: a sequence classifier, plain or wrapped. It is run in training mode, without gradients.

    Raises:
        ConfigurationError: the model is random in training, is not causal, or pools another token than the last.
    """
    if not has_weights():
        return
    name = type(classifier(model)).__name__
    with _as_in_training(model):
        short, long = _probes(model)
        scores = _scores(model, [short])
        if not _close(scores, _scores(model, [short]), _exact_tolerance(model)):
            raise ConfigurationError(
                f"{name} gives different scores each time in training: its dropout is on, under a config name that is "
                "not recognised. Set it to 0 in the model's config"
            )
        half = len(short) // 2
        if not _close(scores[:half], _scores(model, [short[:half] + long[half:]])[:half], _exact_tolerance(model)):
            raise ConfigurationError(
                f"{name} is not causal: later tokens change the scores of earlier ones, so that the value of a state "
                "cannot be read in a longer trajectory. Use a decoder-only base model"
            )
        inner = classifier(model)
        pooled = inner(input_ids=torch.tensor([short], device=inner.device)).logits[0].float().cpu()
        if not _close(scores[-1:], pooled, _kernel_tolerance(model)):
            raise ConfigurationError(
                f"{name} does not return its `score` head at the last token (expected {float(scores[-1]):.4g}, got "
                f"{pooled.tolist()}): a value model pools the last token. Use another base model"
            )


def can_pack(model: Any) -> bool:
    """Return whether trajectories in one row, with restarted positions, get the scores that each gets alone.

    Transformers' masks and variable-length kernels separate them. Some models ignore the positions, and would silently
    let them attend to each other.
    """
    transformer = getattr(classifier(model), classifier(model).base_model_prefix)
    if "position_ids" not in inspect.signature(transformer.forward).parameters:
        return False
    with _as_in_training(model):
        short, long = _probes(model)
        n = len(short)
        packed = _scores(model, [short, long], packed=True)
        after_another = _scores(model, [long[:n], long], packed=True)
        separated = _close(packed[n:], after_another[n:], _exact_tolerance(model))
        alone = torch.cat([_scores(model, [short]), _scores(model, [long])])
        return separated and _close(packed, alone, _kernel_tolerance(model))


def use_packing(model: Any, packing: bool | Literal["auto"]) -> bool:
    """Decide whether to pack rows.

    "auto" packs if a variable-length kernel (flash, flex attention) is used: it computes neither padding nor attention
    between trajectories. SDPA has a causal fast path for padded rows, but needs a mask over all pairs of positions for
    packed ones.

    Raises:
        ConfigurationError: `packing` is True and the model cannot pack, or has no weights to check that.
    """
    if packing and not has_weights():
        if packing == "auto":
            return False
        raise ConfigurationError(
            "whether the model can pack is found by running it, and with FSDP's cpu_ram_efficient_loading it has no "
            "weights before training: leave packing off, or turn that off"
        )
    if packing == "auto":
        implementation = classifier(model).config.get_text_config()._attn_implementation or ""
        return any(kernel in implementation for kernel in ("flash", "flex")) and can_pack(model)
    if packing and not can_pack(model):
        raise ConfigurationError(
            f"{type(classifier(model)).__name__} with this attention lets packed trajectories see each other, or does "
            "not restart their positions: leave packing off (rows are then padded, in batches of similar length)"
        )
    return packing


@contextmanager
def _as_in_training(model: Any) -> Iterator[None]:
    was_training = model.training
    model.train()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def _probes(model: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a short and a longer text of random tokens, all different and none of them padding."""
    config = classifier(model).config.get_text_config()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randperm(config.vocab_size, generator=generator)
    ids = drawn[drawn != config.pad_token_id][: _LONG + _SHORT].tolist()
    return tuple(ids[:_SHORT]), tuple(ids[_SHORT:])


def _scores(model: Any, texts: Sequence[tuple[int, ...]], *, packed: bool = False) -> Tensor:
    """Return the scores at all tokens of the texts."""
    rows = []
    for ids in texts:
        size, zeros = len(ids), (0.0,) * len(ids)
        places = tuple(range(size))
        rows.append(TargetRow(ids, places, places, zeros, (False,) * size, False, zeros))
    pad_id = classifier(model).config.get_text_config().pad_token_id
    return scores_at_marks(model, collate(rows, pad_id, packed=packed)).cpu()


def _close(scores: Tensor, others: Tensor, tolerance: float) -> bool:
    return bool((scores - others).abs().max() <= tolerance * scores.abs().max())


def _exact_tolerance(model: Any) -> float:
    """Return how far scores of the same arithmetic may differ, as a share of the largest."""
    return max(1e-4, 10 * float(torch.finfo(classifier(model).dtype).eps))


def _kernel_tolerance(model: Any) -> float:
    """Return how far scores may differ if another kernel or another order of sums computes them."""
    return max(1e-3, 50 * float(torch.finfo(classifier(model).dtype).eps))


_SHORT, _LONG = 16, 24
"""Tokens of the two probe texts."""
