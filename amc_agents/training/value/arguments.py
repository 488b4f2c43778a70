"""What transformers' Trainer is told of a training, and what it must not do to the rest of the program."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.training.value.settings import ValueTrainingSettings

try:
    import torch
    from transformers import TrainingArguments
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


class OneDevice(TrainingArguments):
    """TrainingArguments of a process that uses one device.

    Where a machine has several, transformers would spread the batches of a single process over all of them
    (`DataParallel`); several devices are for several processes.
    """

    @property
    def n_gpu(self) -> int:
        """At most 1."""
        return min(1, int(super().n_gpu))


def training_arguments(settings: ValueTrainingSettings, folder: Path) -> OneDevice:
    """The Trainer's settings; starts the process group where there are several processes.

    Args:
        settings: of the training.
        folder: for saved states.

    Raises:
        ConfigurationError: the device is not there.
    """
    kind, _, index = settings.device.partition(":")
    if index:
        raise ConfigurationError(
            f"device {settings.device!r}: give {kind!r}, and choose among devices by CUDA_VISIBLE_DEVICES"
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
        report_to=[one for one in settings.report_to if one != "tensorboard"] or "none",
        eval_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        logging_nan_inf_filter=False,
        remove_unused_columns=False,
        dataloader_pin_memory=kind != "cpu",
        ddp_find_unused_parameters=False,
        ddp_timeout=_PATIENCE,
    )
    if arguments.device.type != kind:
        raise ConfigurationError(f"device {settings.device!r} is not there: torch found {arguments.device.type!r}")
    return arguments


@contextmanager
def global_random_state_kept() -> Iterator[None]:
    """What is drawn inside from the global generators, which the Trainer seeds, is not felt outside."""
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
"""Steps between two entries of the metrics by step."""
_PATIENCE = 6 * 3600
"""Seconds that processes wait for one that reads data or writes the result."""
