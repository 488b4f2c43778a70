"""transformers' Trainer over whole trajectories: data parallelism, sharding, reporting and checkpoints are its own.

What differs from a plain Trainer:

- An optimizer step is planned as one batch for all processes (`value_plan`). Its gradient is the mean over the marks of
  that whole batch, however it is cut into passes and processes.
- The held-out loss is looked at before a state is saved, so that a state holds all that came before it.
- A saved state counts only when its last file is there, and holds what is trained alone.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.training.schedule import warm_up_and_cosine
from amc_agents.training.value.plan import Plan
from amc_agents.training.value.sets import RowSet
from amc_agents.training.value.settings import ValueTrainingSettings
from amc_agents.training.value.state import WHOLE, write_json
from amc_agents.types import FloatArray

try:
    import torch
    from safetensors.torch import load_file, save_file
    from torch import Tensor
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
    from torch.utils.data import DataLoader
    from transformers import PrinterCallback, Trainer, TrainerCallback
    from transformers.integrations import integration_utils
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error

from amc_agents.training.value.arguments import OneDevice
from amc_agents.training.value.loader import Loader, Passes, Steps
from amc_agents.training.value.loss import loss as value_loss
from amc_agents.training.value.one_pass import scores_at_marks


class Progress(NamedTuple):
    """What a progress callback gets after each step (on the first process alone)."""

    step: int
    steps: int
    epoch: int
    loss: float
    """Mean over the marks of the step; of several processes, over those of the first."""
    tokens_per_second: float
    """Of all processes together, without padding, since this run began."""
    seconds_left: float
    """If the rest goes as fast as this run so far."""


class ValueTrainer(Trainer):
    """Trains a value model; `train()` as in transformers."""

    def __init__(
        self,
        model: Any,
        arguments: OneDevice,
        training: RowSet,
        held_out: RowSet,
        settings: ValueTrainingSettings,
        *,
        pad_id: int,
        packed: bool,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.settings, self.pad_id, self.packed = settings, pad_id, packed
        self.training, self.held_out = training, held_out
        self.folder = Path(str(arguments.output_dir))
        """Of saved states."""
        self.history: list[dict[str, float]] = []
        """At each look: step, epoch, train_loss since the last look, and validation_loss."""
        self._loss_sum, self._loss_count = 0.0, 0
        # Losses that are not in the sum yet: read back from the device as seldom as can be.
        self._unsettled, self._unsettled_count = torch.zeros((), device=arguments.device), 0
        self._last_loss = self._unsettled
        self.step_tokens = 0
        """Of all processes, in the last step."""
        super().__init__(model=model, args=arguments, train_dataset=training.rows)
        self.pop_callback(PrinterCallback)
        for reporter in _tensorboard(settings, self):
            self.add_callback(reporter)
        self._trained = [one for one in model.parameters() if one.requires_grad]
        self.plan, self.held_out_plan = self._plan(training), self._plan(held_out)
        self.steps_per_epoch = self.plan.steps_per_epoch
        self.add_callback(_Course(self, progress if self.is_world_process_zero() else None))
        if settings.keep_best and self.is_deepspeed_enabled:
            raise ConfigurationError("keep_best is not for DeepSpeed: keep the last, or use FSDP")
        if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" and not self.is_fsdp_enabled:
            raise ConfigurationError(
                f"the configuration asks for FSDP, and accelerate does not shard on {arguments.device.type!r}: use "
                "several GPUs (--device cuda), or a configuration without FSDP"
            )

    def _plan(self, data: RowSet) -> Plan:
        return Plan(
            data.lengths, data.marks,
            batch_size=self.settings.batch_size, max_tokens=self.settings.max_batch_tokens, packed=self.packed,
            processes=self.args.world_size, seed=self.settings.seed,
        )  # fmt: skip

    # What the Trainer asks for.

    def get_train_dataloader(self) -> DataLoader[Any]:
        """One item per optimizer step: this process's passes."""
        return Loader(
            Passes(self.training.rows, self.pad_id, self.packed),
            batch_sampler=Steps(self.plan, self.args.process_index, self.args.world_size),
            collate_fn=list,
            # A generator of its own: torch's global one stays as it is.
            generator=torch.Generator(),
            pin_memory=self.args.dataloader_pin_memory,
        )

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Warm-up and cosine."""
        if self.lr_scheduler is None:

            def rate(step: int) -> float:
                return warm_up_and_cosine(step, num_training_steps, self.settings.warm_up)

            chosen: Any = optimizer or self.optimizer
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(chosen, rate)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of one step's passes.

        Returns:
            This process's part of the mean loss, times the number of processes: their mean is the step's loss.
        """
        if not model.training:
            model.train()
        processes = self.args.world_size
        options = {"scale_wrt_gas": False} if self.is_deepspeed_enabled else {}
        total = torch.zeros((), device=self.args.device)
        for number, prepared in enumerate(inputs):
            batch = self._prepare_inputs(prepared)
            last = number == len(inputs) - 1
            self.accelerator.sync_gradients = last
            # Processes exchange gradients once a step, with its last pass.
            with nullcontext() if last else self.accelerator.no_sync(model):
                with self.compute_loss_context_manager():
                    scores = scores_at_marks(model, batch)
                    part = value_loss(scores, batch, self.settings.objective) * (batch["share"] * processes)
                self.accelerator.backward(part, **options)
            total += part.detach()
        self._last_loss = total
        self._unsettled = self._unsettled + total
        self._unsettled_count += 1
        self.step_tokens = inputs[-1]["step_tokens"]
        return total

    @property
    def last_loss(self) -> float:
        """Of the last step, as far as this process saw it."""
        return float(self._last_loss)

    def _clip_grad_norm(self, model: Any) -> Any:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled or self.accelerator.scaler is not None:
            library: Any = super()
            return library._clip_grad_norm(model)
        # The same without a walk through all modules at every step, which a small model would feel.
        return torch.nn.utils.clip_grad_norm_(self._trained, self.args.max_grad_norm)

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted: the Trainer's estimate is for another kind of batch."""
        return 0

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The mean loss over the marks of the held-out rows, which is noted and reported."""
        objective = replace(self.settings.objective, td_lambda=1.0)  # what came, not what the model says of it
        sums = torch.zeros(2, dtype=torch.float64)
        for _, batch, scores in self._scored(self.held_out, self.held_out_plan):
            sums += torch.tensor([float(value_loss(scores, batch, objective)), len(scores)], dtype=torch.float64)
        total, count = self._over_processes(sums.tolist())
        found = total / count
        if not math.isfinite(found):
            raise ConfigurationError(
                f"the held-out loss is {found} at step {self.state.global_step}: the training has diverged; lower the "
                "learning rate"
            )
        self._settle_losses()
        self.history.append(
            {
                "step": self.state.global_step,
                "epoch": math.ceil(self.state.global_step / self.steps_per_epoch),
                "train_loss": self._loss_sum / max(1, self._loss_count),
                "validation_loss": found,
            }
        )
        self._loss_sum, self._loss_count = 0.0, 0
        if self.settings.keep_best and found < min(
            (one["validation_loss"] for one in self.history[:-1]), default=math.inf
        ):
            self._write_weights(self.folder / _BEST)
        metrics = {"eval_loss": found}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    # States.

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """What is trained alone; FSDP and DeepSpeed keep it in their own way."""
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super().save_model(output_dir, _internal_call)
        else:
            self._write_weights(Path(output_dir or self.folder) / _WEIGHTS)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._settle_losses()
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.is_world_process_zero():
            saved = self.folder / f"checkpoint-{self.state.global_step}"
            values = {"history": self.history, "loss_sum": self._loss_sum, "loss_count": self._loss_count}
            write_json(saved / WHOLE, values)
            for other in self.folder.glob("checkpoint-*"):
                if other != saved:
                    shutil.rmtree(other)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            self._read_weights(Path(resume_from_checkpoint) / _WEIGHTS)

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, resume_from_checkpoint: Any,
        trial: Any,
    ) -> tuple[int, int]:  # fmt: skip
        begun = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        if resume_from_checkpoint is not None:
            kept = json.loads((Path(resume_from_checkpoint) / WHOLE).read_text())
            self.history = kept["history"]
            self._loss_sum, self._loss_count = kept["loss_sum"], kept["loss_count"]
        return (num_train_epochs, 0) if self.stopped_early() else begun

    # Results.

    def stopped_early(self) -> bool:
        """Whether the held-out loss has not become smaller for long enough."""
        losses = [one["validation_loss"] for one in self.history]
        patience = self.settings.early_stopping
        return patience is not None and len(losses) - 1 - losses.index(min(losses)) >= patience if losses else False

    def keep_best(self) -> None:
        """Sets the weights back to those of the least held-out loss."""
        self.accelerator.wait_for_everyone()
        self._read_weights(self.folder / _BEST)

    def scores(self, data: RowSet) -> list[FloatArray]:
        """The raw scores `[S]` at the marks of each row, on every process."""
        own: dict[int, FloatArray] = {}
        for rows, _, scores in self._scored(data, self._plan(data)):
            parts = torch.split(scores.cpu(), [int(data.marks[row]) for row in rows])
            own |= {row: part.double().numpy() for row, part in zip(rows, parts, strict=True)}
        every: list[Any] = [own]
        if self.args.world_size > 1:
            every = [None] * self.args.world_size
            torch.distributed.all_gather_object(every, own)
        found = {row: scores for part in every for row, scores in part.items()}
        return [found[row] for row in range(len(data.rows))]

    def weights(self) -> dict[str, Tensor]:
        """What is trained, by its name in the model as it was given, whole and on the CPU; empty on other processes.

        All processes must call it.
        """
        trained = {name: one for name, one in self.unwrapped().named_parameters() if one.requires_grad}
        whole: Mapping[str, Any] = trained
        if self.is_fsdp_enabled:
            sharded: Any = self.model
            whole = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        elif self.is_deepspeed_enabled:
            whole = self.accelerator.get_state_dict(self.model_wrapped) or {}
        if not self.is_world_process_zero():
            return {}
        return {name: one.detach().cpu().contiguous() for name, one in whole.items() if name in trained}

    def unwrapped(self) -> Any:
        """The model as it was given, trained; under sharding only this process's part of it."""
        return self.accelerator.unwrap_model(self.model)

    def _write_weights(self, path: Path) -> None:
        weights = self.weights()
        if self.is_world_process_zero():
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(f".{path.name}.part")
            save_file(weights, str(unfinished))
            unfinished.replace(path)

    def _read_weights(self, path: Path) -> None:
        weights = load_file(str(path))
        if self.is_fsdp_enabled:
            sharded: Any = self.model
            given: dict[str, Any] = dict(weights)
            set_model_state_dict(sharded, given, options=StateDictOptions(full_state_dict=True, strict=False))
        else:
            set_weights(self.unwrapped(), weights)

    def _scored(self, data: RowSet, plan: Plan) -> Iterator[tuple[tuple[int, ...], dict[str, Tensor], Tensor]]:
        """This process's part of all rows: their numbers, batch and scores."""
        model = self.model_wrapped
        was_training = model.training
        model.eval()
        passes = Passes(data.rows, self.pad_id, self.packed)
        with torch.no_grad(), self.compute_loss_context_manager():
            for one in plan.rounds(range(len(data.rows)))[self.args.process_index]:
                batch = self._prepare_inputs(passes[one])
                scores = scores_at_marks(model, batch)
                if one.share:
                    yield one.rows, batch, scores
        model.train(was_training)

    def _settle_losses(self) -> None:
        """Adds the losses of the steps since the last time; every process then knows the same."""
        (total,) = self._over_processes([float(self._unsettled)])
        self._loss_sum += total / self.args.world_size
        self._loss_count += self._unsettled_count
        self._unsettled, self._unsettled_count = torch.zeros_like(self._unsettled), 0

    def from_first(self, decision: bool) -> bool:
        """What the first process has decided."""
        found = [decision]
        if self.args.world_size > 1:
            torch.distributed.broadcast_object_list(found, src=0)
        return found[0]

    def _over_processes(self, numbers: list[float]) -> list[float]:
        if self.args.world_size == 1:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self.args.device)
        return [float(one) for one in self.accelerator.reduce(tensor, "sum")]


class _Course(TrainerCallback):
    """When to look, to save and to stop; and what to tell."""

    def __init__(self, trainer: ValueTrainer, progress: Callable[[Progress], None] | None) -> None:
        self._trainer, self._progress = trainer, progress
        settings = trainer.settings
        self._evaluate = settings.evaluate_steps or trainer.steps_per_epoch
        self._saved = time.perf_counter()
        self._began, self._first, self._tokens = time.perf_counter(), 0, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began, self._first = time.perf_counter(), state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step, last = state.global_step, state.global_step == state.max_steps
        # Both in the same moment, where the Trainer looks before it saves.
        control.should_evaluate = last or step % self._evaluate == 0
        control.should_save = self._time_to_save(step, last)
        trainer = self._trainer
        self._tokens += trainer.step_tokens
        if self._progress is not None:
            seconds = time.perf_counter() - self._began
            steps = step - self._first
            self._progress(
                Progress(
                    step, state.max_steps,
                    epoch=(step - 1) // trainer.steps_per_epoch + 1,
                    loss=trainer.last_loss,
                    tokens_per_second=self._tokens / seconds,
                    seconds_left=(state.max_steps - step) * seconds / steps,
                )
            )  # fmt: skip

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._trainer.stopped_early():
            control.should_training_stop = True
            control.should_save = self._time_to_save(state.global_step, last=True)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saved = time.perf_counter()

    def _time_to_save(self, step: int, last: bool) -> bool:
        every = self._trainer.settings.save_steps
        if every is not None:
            return last or step % every == 0
        if not last and step % self._trainer.steps_per_epoch:
            return False
        # By the clock of the first process, as all must do the same.
        return self._trainer.from_first(time.perf_counter() - self._saved > _SECONDS_BETWEEN_STATES)


def set_weights(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Copies `ValueTrainer.weights` into a model that was made alike."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            parameters[name].copy_(weight)


def _tensorboard(settings: ValueTrainingSettings, trainer: ValueTrainer) -> Iterator[TrainerCallback]:
    """The library's reporter with a folder that outlives the training's state: beside the result."""
    if "tensorboard" not in settings.report_to or not trainer.is_world_process_zero():
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtra("tensorboard", "train") from error
    name = trainer.folder.name.removeprefix(".").removesuffix(".training")
    reporter: Any = integration_utils.TensorBoardCallback
    yield reporter(SummaryWriter(log_dir=str(trainer.folder.with_name(f"{name}-runs"))))


_SECONDS_BETWEEN_STATES = 60.0
"""Where no steps are given: what takes no longer is begun anew."""
_WEIGHTS = "trained.safetensors"
_BEST = "best.safetensors"
