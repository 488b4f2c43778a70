"""Score all states of whole trajectories in one forward pass.

Prompts are append-only and attention is causal, so the score at the mark of a state is the score of that prefix alone.
A trajectory of T + 1 states costs one pass over its tokens instead of T + 1 passes over growing prefixes. The gradient
of a sum over marks is the sum of the gradients of the separate passes.

Rows of a batch are padded on the right, where causal attention needs no mask and the kernel takes its fast path. Or
they are packed: concatenated into one row in which positions restart with each trajectory. Transformers' masks and
variable-length kernels then allow no attention between trajectories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any

from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.training.value.data import TargetRow
from amc_agents.types import FloatArray

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


def collate(rows: Sequence[TargetRow], pad_id: int, *, packed: bool = False) -> dict[str, Tensor]:
    """Collate rows into the tensors of one pass: B rows (packed: 1) of S tokens, and M marks.

    Args:
        rows: at least one row.
        pad_id: fills up shorter rows. A mark must not be this token: a classifier pools the last token that is not
            padding.
        packed: concatenate the rows into a single row, restarting positions.

    Returns:
        input_ids `[B, S]`; position_ids `[1, S]`, packed only; and for the marks of all rows, in order: mark_rows,
        mark_columns `[M]` (their places), targets, weights, rewards `[M]` float32, follows `[M]` (index of the mark of
        the next state in the row, -1 for the last), ends `[M]` (whether the state is the end of its trajectory).

    Raises:
        ConfigurationError: a mark is the padding token.
    """
    for row in rows:
        if any(row.ids[mark] == pad_id for mark in row.marks):
            raise ConfigurationError(
                f"a state's mark ends in token {pad_id}, which is the padding token: a sequence classifier would read "
                "the token before it. Choose another pad token for the tokenizer, or another marker for the prompt "
                "format"
            )
    counts = [len(row.marks) for row in rows]
    columns = [torch.tensor(row.marks) for row in rows]
    batch: dict[str, Tensor] = {}
    if packed:
        lengths = [len(row.ids) for row in rows]
        batch["input_ids"] = torch.tensor([[token for row in rows for token in row.ids]])
        batch["position_ids"] = torch.cat([torch.arange(length) for length in lengths])[None]
        starts = [sum(lengths[:index]) for index in range(len(rows))]
        batch["mark_rows"] = torch.zeros(sum(counts), dtype=torch.long)
        batch["mark_columns"] = torch.cat([start + column for start, column in zip(starts, columns, strict=True)])
    else:
        ids = torch.full((len(rows), max(len(row.ids) for row in rows)), pad_id)
        for index, row in enumerate(rows):
            ids[index, : len(row.ids)] = torch.tensor(row.ids)
        batch["input_ids"] = ids
        batch["mark_rows"] = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(counts))
        batch["mark_columns"] = torch.cat(columns)
    for name in ("targets", "weights", "rewards"):
        batch[name] = torch.tensor([value for row in rows for value in getattr(row, name)], dtype=torch.float32)
    follows = torch.arange(1, sum(counts) + 1)
    follows[torch.tensor(counts).cumsum(0) - 1] = -1
    batch["follows"] = follows
    batch["ends"] = torch.tensor([final for row in rows for final in row.final])
    return batch


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


def row_values(model: Any, rows: Sequence[TargetRow], batch_size: int = 16) -> list[FloatArray]:
    """Return the `[S]` scores at the marks of each row, in the order of the rows."""
    inner = classifier(model)
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].ids))
    scores: dict[int, FloatArray] = {}
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch = collate([rows[index] for index in chosen], inner.config.get_text_config().pad_token_id)
            parts = torch.split(scores_at_marks(model, batch).cpu(), [len(rows[index].marks) for index in chosen])
            scores |= {index: part.double().numpy() for index, part in zip(chosen, parts, strict=True)}
    model.train(was_training)
    return [scores[index] for index in range(len(rows))]


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
