"""Trainer arguments, and a guard for global random state."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from typing_extensions import override

from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.quoting import quoted

try:
    import torch
    from transformers import TrainingArguments
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


class TrainerSettings(Protocol):
    """The settings that Trainer gets: of a value model, or of a policy."""

    @property
    def learning_rate(self) -> float:
        """Peak learning rate."""

    @property
    def epochs(self) -> int:
        """Passes over the data."""

    @property
    def batch_size(self) -> int:
        """Rows per step."""

    @property
    def max_grad_norm(self) -> float:
        """Longer gradients are shortened to this norm."""

    @property
    def weight_decay(self) -> float:
        """AdamW's weight decay."""

    @property
    def device(self) -> str:
        """Torch device."""

    @property
    def seed(self) -> int:
        """Seed of Trainer."""


class OneDevice(TrainingArguments):
    """TrainingArguments of a process that uses one device.

    By default, transformers spreads the batches of a single process over all devices of the machine (`DataParallel`).
    Here, several devices need several processes.
    """

    @property
    @override
    def n_gpu(self) -> int:
        return min(1, int(super().n_gpu))


def training_arguments(
    settings: TrainerSettings, folder: Path, *, keep_best: bool = False, report_to: Sequence[str] = ()
) -> OneDevice:
    """Return the Trainer arguments. Starts the process group if the program runs in several processes.

    Args:
        settings: the training's settings.
        folder: for checkpoints.
        keep_best: whether to keep the weights with the lowest held-out loss.
        report_to: integrations that transformers reports to.

    Raises:
        ConfigurationError: the device is not available, or the processes were launched with DeepSpeed.
    """
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true":
        raise ConfigurationError("DeepSpeed is not supported: use a configuration with FSDP, or without sharding")
    kind, _, index = settings.device.partition(":")
    if index:
        raise ConfigurationError(
            f"device {quoted(settings.device)}: give {quoted(kind)}, and choose among devices by CUDA_VISIBLE_DEVICES"
        )
    arguments = OneDevice(
        output_dir=str(folder),
        learning_rate=settings.learning_rate,
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        max_grad_norm=settings.max_grad_norm,
        weight_decay=settings.weight_decay,
        seed=settings.seed,
        use_cpu=kind == "cpu",
        logging_steps=_LOGGING_STEPS,
        report_to=[name for name in report_to if name != "tensorboard"] or "none",
        eval_strategy="steps",
        save_strategy="steps",
        save_total_limit=2,  # with 1, Trainer deletes the last checkpoint at the end if an earlier one is the best
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        load_best_model_at_end=keep_best,
        restore_callback_states_from_checkpoint=True,
        disable_tqdm=True,
        logging_nan_inf_filter=False,
        remove_unused_columns=False,
        dataloader_pin_memory=kind != "cpu",
        ddp_find_unused_parameters=False,
        ddp_timeout=_PATIENCE,
    )
    if arguments.device.type != kind:
        raise ConfigurationError(
            f"device {quoted(settings.device)} is not available: torch chose {quoted(arguments.device.type)}. Use that "
            "device, or install a torch build for the other"
        )
    return arguments


@contextmanager
def global_random_state_kept() -> Iterator[None]:
    """Restore the global random state after the block; Trainer seeds it."""
    kept = random.getstate(), np.random.get_state()
    cuda: Any = torch.cuda
    devices = [cuda.current_device()] if cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])


_LOGGING_STEPS = 10
"""Steps between two log entries."""
_PATIENCE = 6 * 3600
"""Seconds that the other processes wait while the first one reads data or writes the result."""
