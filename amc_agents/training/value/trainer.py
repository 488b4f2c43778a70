"""Train a value model with transformers' Trainer, whole trajectories at a time.

Trainer does the optimizer, the data parallelism, FSDP, checkpoints, the best model, early stopping and reporting. This
subclass adds:

- the scores of all states of a trajectory from one forward pass (`one_pass`), in training and in evaluation;
- optimizer steps of several passes whose number follows from the tokens of the step (`batches`). Trainer's own gradient
  accumulation takes the same number of passes in every step, enough for the longest one.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.quoting import quoted
from amc_agents.training.fine_tuning import quiet, warm_up_and_cosine
from amc_agents.training.settings import ValueTrainingSettings
from amc_agents.training.training_state import CHECKPOINT_STATE
from amc_agents.training.value.batches import PassDataset, StepLoader, StepPlan, StepSampler, collate
from amc_agents.training.value.one_pass import loss as value_loss
from amc_agents.training.value.one_pass import scores_at_marks
from amc_agents.training.value.rows import ValueRows
from amc_agents.types import FloatArray

try:
    import torch
    from torch import Tensor
    from torch.nn.utils.rnn import pad_sequence
    from torch.utils.data import DataLoader, Subset
    from transformers import (
        EarlyStoppingCallback,
        EvalPrediction,
        PrinterCallback,
        Trainer,
        TrainerCallback,
        TrainerState,
        TrainingArguments,
    )
    from transformers.integrations import integration_utils
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


class OneDevice(TrainingArguments):
    """TrainingArguments of a process that uses one device.

    By default, transformers spreads the batches of a single process over all devices of the machine (`DataParallel`).
    Here, several devices need several processes.
    """

    @property
    @override
    def n_gpu(self) -> int:
        return min(1, int(super().n_gpu))


def training_arguments(settings: ValueTrainingSettings, folder: Path) -> OneDevice:
    """Return the Trainer arguments. Starts the process group if the program runs in several processes.

    Args:
        settings: the training's settings.
        folder: for checkpoints.

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
        report_to=[name for name in settings.report_to if name != "tensorboard"] or "none",
        eval_strategy="steps",
        save_strategy="steps",
        save_total_limit=2,  # with 1, Trainer deletes the last checkpoint at the end if an earlier one is the best
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        load_best_model_at_end=settings.keep_best,
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


class TrainingProgress(NamedTuple):
    """What a progress callback gets after each step, on the first process only."""

    step: int
    steps: int
    epoch: int
    loss: float
    """Mean over the marks of the step, as far as the first process reads them."""
    tokens_per_second: float
    """Over all processes, without padding, since this run began."""
    seconds_left: float
    """Estimated from the speed of this run so far."""


class ValueTrainer(Trainer):
    """Trainer of a value model."""

    def __init__(
        self,
        model: Any,
        arguments: OneDevice,
        training: ValueRows,
        held_out: ValueRows,
        settings: ValueTrainingSettings,
        *,
        pad_id: int,
        packed: bool,
        progress: Callable[[TrainingProgress], None] | None = None,
    ) -> None:
        self.settings = settings
        self.plan = StepPlan(
            training.lengths, training.marks,
            batch_size=settings.batch_size, max_tokens=settings.max_batch_tokens, packed=packed,
            processes=arguments.world_size, seed=settings.seed,
        )  # fmt: skip
        self.passes = PassDataset(training, pad_id, packed)
        self.last_loss = torch.zeros(())
        """Mean loss of the last step, as far as this process reads it."""
        self.step_tokens = 0
        """Tokens of the last step on all processes."""
        arguments.eval_steps = settings.evaluate_steps or self.plan.steps_per_epoch
        arguments.save_steps = settings.save_steps or self.plan.steps_per_epoch
        arguments.per_device_eval_batch_size = _evaluation_rows(held_out, settings)
        super().__init__(
            model=model, args=arguments, train_dataset=self.passes, eval_dataset=_by_length(held_out),
            data_collator=partial(collate, pad_id=pad_id), compute_metrics=partial(_held_out_loss, settings=settings),
        )  # fmt: skip
        self.pop_callback(PrinterCallback)
        for callback in self._callbacks(progress):
            self.add_callback(callback)
        _check_sharding(self)

    def _callbacks(self, progress: Callable[[TrainingProgress], None] | None) -> Iterator[TrainerCallback]:
        yield _Schedule(self.settings)
        if self.settings.early_stopping is not None:
            yield EarlyStoppingCallback(self.settings.early_stopping)
        if not self.is_world_process_zero():
            return
        if progress is not None:
            yield _ProgressReport(self, progress)
        if "tensorboard" in self.settings.report_to:
            yield _tensorboard(Path(str(self.args.output_dir)))

    @override
    def get_train_dataloader(self) -> DataLoader[Any]:
        sampler = StepSampler(self.plan, self.args.process_index, self.args.world_size)
        return StepLoader(self.passes, sampler, pin_memory=self.args.dataloader_pin_memory)

    @override
    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:

            def rate(step: int) -> float:
                return warm_up_and_cosine(step, num_training_steps, self.settings.warm_up)

            chosen: Any = optimizer or self.optimizer
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(chosen, rate)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    @override
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        # The processes exchange gradients once per step, in its last pass.
        *earlier, last = inputs
        total = torch.zeros((), device=self.args.device)
        for batch in earlier:
            with self.accelerator.no_sync(model):
                total += super().training_step(model, batch)
        total += super().training_step(model, last)
        self.last_loss, self.step_tokens = total, last["step_tokens"]
        return total

    @override
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        scores = scores_at_marks(model, inputs)
        # The mean over processes of this is the mean over all marks of the step.
        loss = value_loss(scores, inputs, self.settings.objective) * (inputs["share"] * self.args.world_size)
        return (loss, {"scores": scores}) if return_outputs else loss

    @override
    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the scores `[B, S]` of a batch and, as labels, its targets and weights `[B, S, 2]`, padded."""
        with torch.no_grad(), self.compute_loss_context_manager():
            scores = scores_at_marks(model, inputs)
        labels = torch.stack([inputs["targets"], inputs["weights"]], dim=-1).to(scores)
        states = torch.bincount(inputs["mark_rows"]).tolist()
        return None, _padded(scores, states), _padded(labels, states)

    def train_from(self, checkpoint: Path | None) -> None:
        """Train, or resume from a checkpoint."""
        if checkpoint is not None:
            state = TrainerState.load_from_json(str(checkpoint / CHECKPOINT_STATE))
            if state.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"]:
                # Trainer would take another step after an early stop.
                self.args.num_train_epochs = state.global_step // self.plan.steps_per_epoch
        with quiet():
            self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))

    def scores(self, data: ValueRows) -> list[FloatArray]:
        """Return the raw scores `[S]` at the marks of each row, on every process."""
        padded = np.asarray(self.predict(_by_length(data)).predictions, dtype=np.float64)
        place = np.argsort(np.argsort(data.lengths, kind="stable"))
        return [padded[at, :marks] for at, marks in zip(place, data.marks, strict=True)]

    def evaluations(self) -> list[dict[str, float]]:
        """Return step, epoch, train_loss (mean since the previous one) and validation_loss of each evaluation."""
        evaluations, losses, steps, logged = [], 0.0, 0, 0
        for entry in self.state.log_history:
            step = int(entry["step"])
            if "loss" in entry:
                losses += entry["loss"] * (step - logged)
                steps += step - logged
                logged = step
            elif "eval_loss" in entry:
                evaluations.append(
                    {
                        "step": step,
                        "epoch": math.ceil(step / self.plan.steps_per_epoch),
                        "train_loss": losses / max(1, steps),
                        "validation_loss": entry["eval_loss"],
                    }
                )
                losses, steps = 0.0, 0
        return evaluations


class _Schedule(TrainerCallback):
    """Decide when to log, to evaluate and to save, beyond Trainer's own intervals."""

    def __init__(self, settings: ValueTrainingSettings) -> None:
        # The best model is loaded from a checkpoint, and an early stop must not be forgotten.
        self._save_evaluated = settings.keep_best or settings.early_stopping is not None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_evaluate |= state.global_step == state.max_steps
        # A checkpoint does not hold losses that were not logged.
        control.should_log |= control.should_evaluate or control.should_save

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if not math.isfinite(metrics["eval_loss"]):
            raise ConfigurationError(
                f"the held-out loss is {metrics['eval_loss']} at step {state.global_step}: the training has diverged; "
                "lower the learning rate"
            )
        control.should_save |= self._save_evaluated


class _ProgressReport(TrainerCallback):
    """Call a progress callback after each step."""

    def __init__(self, trainer: ValueTrainer, progress: Callable[[TrainingProgress], None]) -> None:
        self._trainer, self._progress = trainer, progress
        self._began, self._first_step, self._tokens = time.perf_counter(), 0, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began, self._first_step = time.perf_counter(), state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer, step = self._trainer, state.global_step
        self._tokens += trainer.step_tokens
        seconds = time.perf_counter() - self._began
        self._progress(
            TrainingProgress(
                step, state.max_steps,
                epoch=(step - 1) // trainer.plan.steps_per_epoch + 1,
                loss=float(trainer.last_loss),
                tokens_per_second=self._tokens / seconds,
                seconds_left=(state.max_steps - step) * seconds / (step - self._first_step),
            )
        )  # fmt: skip


def _held_out_loss(prediction: EvalPrediction, settings: ValueTrainingSettings) -> dict[str, float]:
    """Return the mean loss over the marks of the held-out rows."""
    labels = np.asarray(prediction.label_ids)
    is_mark = labels[..., 1] != _PADDING  # weights are not negative
    targets, weights = torch.from_numpy(labels[is_mark]).unbind(-1)
    scores = torch.from_numpy(np.asarray(prediction.predictions)[is_mark])
    batch = {"targets": targets, "weights": weights}
    total = value_loss(scores.double(), batch, settings.objective)
    return {"loss": float(total) / len(scores)}


def _padded(values: Tensor, states: list[int]) -> Tensor:
    """Split values of marks by row, and pad the rows to a rectangle."""
    return pad_sequence(list(torch.split(values, states)), batch_first=True, padding_value=_PADDING)


def _by_length(data: ValueRows) -> Subset[Any]:
    """Order rows by length, so that the rows of a batch need little padding."""
    rows: Any = data
    return Subset(rows, np.argsort(data.lengths, kind="stable").tolist())


def _evaluation_rows(data: ValueRows, settings: ValueTrainingSettings) -> int:
    """Return the rows of an evaluation batch on one process, within `max_batch_tokens`."""
    limit = settings.max_batch_tokens
    rows = settings.batch_size if limit is None else limit // int(np.max(data.lengths))
    return max(1, min(settings.batch_size, rows))


def _check_sharding(trainer: ValueTrainer) -> None:
    """Raise `ConfigurationError` for a sharding that was configured and cannot be used."""
    if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" and not trainer.is_fsdp_enabled:
        raise ConfigurationError(
            f"the configuration asks for FSDP, but accelerate does not shard on {quoted(trainer.args.device.type)}: "
            "use several GPUs (--device cuda), or a configuration without FSDP"
        )


def _tensorboard(folder: Path) -> TrainerCallback:
    """Return the library's reporter, with a log folder beside the result that outlives the checkpoints."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtra("tensorboard", "train") from error
    name = folder.name.removeprefix(".").removesuffix(".training")
    reporter: Any = integration_utils.TensorBoardCallback
    callback: TrainerCallback = reporter(SummaryWriter(log_dir=str(folder.with_name(f"{name}-runs"))))
    return callback


_PADDING = -100.0
"""Transformers' padding of predictions and labels."""
