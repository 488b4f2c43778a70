"""Is one pass over a trajectory what it claims to be, on this model, with this kernel, on this machine?

Whether a model's attention is causal, whether it still draws dropout, which token its classifier pools, and whether
packed trajectories see each other are found out by asking it about a few tokens, not by its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.training.value.data import TargetRow
from amc_agents.training.value.one_pass import classifier, collate, scores_at_marks

try:
    import torch
    from torch import Tensor
    from transformers import integrations
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error

frameworks: Any = integrations


def can_be_asked() -> bool:
    """Return whether a loaded model has its weights.

    With FSDP's `cpu_ram_efficient_loading`, only one process per machine has them until training begins.
    """
    return not frameworks.is_fsdp_enabled()


def check_one_pass(model: Any) -> None:
    """Refuses a model of which one pass does not give the scores of the prefixes, as its own classifier would.

    A model that cannot be asked is not checked.

    Args:
        model: a sequence classifier, plain or wrapped; asked in training mode, without gradients.

    Raises:
        ConfigurationError: it is random in training, not causal, or pools another token than the last.
    """
    if not can_be_asked():
        return
    name = type(classifier(model)).__name__
    with _as_in_training(model):
        one, other = _probes(model)
        scores = _scores(model, [one])
        if not _close(scores, _scores(model, [one]), _same(model)):
            raise ConfigurationError(
                f"{name} gives other scores each time in training: it draws dropout under a name that was not found. "
                "Turn it off in the model's config"
            )
        half = len(one) // 2
        if not _close(scores[:half], _scores(model, [one[:half] + other[half:]])[:half], _same(model)):
            raise ConfigurationError(
                f"{name} is not causal: later tokens change the scores of earlier ones, so that the value of a state "
                "cannot be read in a longer trajectory. Use a decoder-only base model"
            )
        inner = classifier(model)
        pooled = inner(input_ids=torch.tensor([one], device=inner.device)).logits[0].float().cpu()
        if not _close(scores[-1:], pooled, _rounded(model)):
            raise ConfigurationError(
                f"{name} does not answer with its `score` head at the last token (expected {float(scores[-1]):.4g}, "
                f"got {pooled.tolist()}): a value model pools the last token. Use another base model"
            )


def can_pack(model: Any) -> bool:
    """Whether trajectories in one row, their positions restarted, get the scores that each gets alone.

    Transformers' masks and variable-length kernels wall them off; some models ignore the positions, and would let
    them see each other without a word.
    """
    transformer = getattr(classifier(model), classifier(model).base_model_prefix)
    if "position_ids" not in inspect.signature(transformer.forward).parameters:
        return False
    with _as_in_training(model):
        one, other = _probes(model)
        packed = _scores(model, [one, other], packed=True)
        walled = _close(
            packed[len(one) :], _scores(model, [other[: len(one)], other], packed=True)[len(one) :], _same(model)
        )
        alone = torch.cat([_scores(model, [one]), _scores(model, [other])])
        return walled and _close(packed, alone, _rounded(model))


def use_packing(model: Any, packing: bool | Literal["auto"]) -> bool:
    """Whether to pack, as a setting asks.

    "auto" packs where a kernel of variable length makes it pay (flash, flex attention): no padding, and no attention
    between trajectories to compute and throw away. SDPA has the causal fast path for padded rows, and needs a mask
    over all pairs of positions for packed ones.

    Raises:
        ConfigurationError: `packing` is True and the model cannot, or cannot be asked.
    """
    if packing and not can_be_asked():
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
            "not restart their positions: leave packing off (rows are then padded, in batches of like length)"
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
    """Two texts of random tokens that are not padding, the second one longer, with no token at the same place."""
    config = classifier(model).config.get_text_config()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randperm(config.vocab_size, generator=generator)
    ids = drawn[drawn != config.pad_token_id][: _LONGEST + _SHORTER].tolist()
    return tuple(ids[:_SHORTER]), tuple(ids[_SHORTER:])


def _scores(model: Any, texts: Sequence[tuple[int, ...]], *, packed: bool = False) -> Tensor:
    """The scores at every token of the texts."""
    rows = []
    for ids in texts:
        size, zeros = len(ids), (0.0,) * len(ids)
        places = tuple(range(size))
        rows.append(TargetRow(ids, places, places, zeros, (False,) * size, False, zeros, zeros))
    pad_id = classifier(model).config.get_text_config().pad_token_id
    return scores_at_marks(model, collate(rows, pad_id, packed=packed)).cpu()


def _close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    return bool((one - other).abs().max() <= tolerance * one.abs().max())


def _same(model: Any) -> float:
    """How far scores may differ, as a share of the largest, where the arithmetic is the same."""
    return max(1e-4, 10 * float(torch.finfo(classifier(model).dtype).eps))


def _rounded(model: Any) -> float:
    """The same, where another kernel or another order of sums computes them."""
    return max(1e-3, 50 * float(torch.finfo(classifier(model).dtype).eps))


_SHORTER, _LONGEST = 16, 24
"""Tokens of the two texts that a model is asked about."""
