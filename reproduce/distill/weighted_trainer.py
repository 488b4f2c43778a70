"""Fine-tune a policy with transformers' Trainer, each trajectory weighted by its share of its task."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from amc_agents.errors import MissingExtra
from amc_agents.training.fine_tuning import warm_up_and_cosine
from reproduce.distill.dialogues import PolicyRow

try:
    import torch
    from torch import Tensor
    from torch.nn import functional
    from transformers import PrinterCallback, Trainer, TrainerCallback
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error

from amc_agents.training.fine_tuning import quiet
from amc_agents.training.value.trainer import TrainingProgress


class PolicyTrainer(Trainer):
    """Trainer of a policy.

    Args:
        model: a causal language model.
        arguments: Trainer's.
        rows: the dialogues to imitate.
        pad_id: padding token.
        warm_up: share of the steps that warm up.
        progress: called after each step.
    """

    def __init__(
        self,
        model: Any,
        arguments: Any,
        rows: Sequence[PolicyRow],
        *,
        pad_id: int,
        warm_up: float,
        progress: Callable[[TrainingProgress], None] | None = None,
    ) -> None:
        self._warm_up = warm_up
        self.last_loss, self.read_tokens = 0.0, 0
        # The same divisor for every batch: a trajectory counts by its share, whichever others are beside it.
        self._divisor = sum(map(_mass, rows)) / len(rows)
        super().__init__(
            model=model, args=arguments, train_dataset=_Rows(rows), data_collator=lambda part: collate(part, pad_id)
        )
        self.pop_callback(PrinterCallback)
        if progress is not None:
            self.add_callback(_Report(self, progress))

    @override
    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:

            def rate(step: int) -> float:
                return warm_up_and_cosine(step, num_training_steps, self._warm_up)

            chosen: Any = optimizer or self.optimizer
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(chosen, rate)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    @override
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        total = weighted_losses(model, inputs)
        mass = inputs["weights"].sum()
        self.last_loss = float(total.detach() / mass)
        self.read_tokens += int(inputs["attention_mask"].sum())
        loss = total / (self._divisor * len(inputs["weights"]))
        return (loss, {}) if return_outputs else loss

    def train_from(self, checkpoint: Path | None) -> None:
        """Train, or resume from a checkpoint."""
        with quiet():
            self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))


def collate(rows: Sequence[PolicyRow], pad_id: int) -> dict[str, Tensor]:
    """Pad rows on the right.

    Returns:
        input_ids and attention_mask `[B, S]`, and weights `[B, S]` of the tokens as targets.
    """
    shape = len(rows), max(len(row.ids) for row in rows)
    batch = {
        "input_ids": torch.full(shape, pad_id),
        "attention_mask": torch.zeros(shape, dtype=torch.long),
        "weights": torch.zeros(shape),
    }
    for index, row in enumerate(rows):
        batch["input_ids"][index, : len(row.ids)] = torch.tensor(row.ids)
        batch["attention_mask"][index, : len(row.ids)] = 1
        batch["weights"][index, : len(row.ids)] = torch.tensor(row.weights)
    return batch


def weighted_losses(model: Any, batch: Any) -> Tensor:
    """Return the weighted sum of the cross-entropies of all next tokens."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1].float()
    losses = functional.cross_entropy(logits.flatten(0, 1), batch["input_ids"][:, 1:].flatten(), reduction="none")
    total: Tensor = (losses * batch["weights"][:, 1:].flatten()).sum()
    return total


def mean_loss(model: Any, rows: Sequence[PolicyRow], *, pad_id: int, batch_size: int) -> float:
    """Return the weighted mean of the losses of the agent's tokens."""
    total = 0.0
    model.eval()
    with torch.no_grad():
        for at in range(0, len(rows), batch_size):
            batch = {
                name: tensor.to(model.device) for name, tensor in collate(rows[at : at + batch_size], pad_id).items()
            }
            total += float(weighted_losses(model, batch))
    return total / sum(map(_mass, rows))


def _mass(row: PolicyRow) -> float:
    return sum(row.weights)


class _Rows(torch.utils.data.Dataset[PolicyRow]):
    def __init__(self, rows: Sequence[PolicyRow]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> PolicyRow:
        return self._rows[index]


class _Report(TrainerCallback):
    """Call a progress callback after each step."""

    def __init__(self, trainer: PolicyTrainer, progress: Callable[[TrainingProgress], None]) -> None:
        self._trainer, self._progress = trainer, progress
        self._began, self._first_step = time.perf_counter(), 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began, self._first_step = time.perf_counter(), state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer, step = self._trainer, state.global_step
        seconds = time.perf_counter() - self._began
        self._progress(
            TrainingProgress(
                step, state.max_steps,
                epoch=int(max(0.0, state.epoch - 1e-9)) + 1,
                loss=trainer.last_loss,
                tokens_per_second=trainer.read_tokens / seconds,
                seconds_left=(state.max_steps - step) * seconds / (step - self._first_step),
            )
        )  # fmt: skip
