"""Train a policy on the trajectories that a search found; `train.py` is its command line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from amc_agents.critics.value.checkpoint import weights_hash
from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.files import replace_file
from amc_agents.models.transformers_chat import HFChatTokenizer
from amc_agents.training.data_checks import held_out_tasks
from amc_agents.training.dataset import dataset_hash, iter_records
from amc_agents.training.training_state import TrainingState, weights_written
from reproduce.distill.dialogues import PolicyRow, rows_of
from reproduce.distill.imitated import Imitated, imitated

try:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer, IntervalStrategy
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error

from amc_agents.training.fine_tuning import context, pad_token, quiet
from amc_agents.training.settings import ValueTrainingSettings
from amc_agents.training.value.trainer import TrainingProgress, global_random_state_kept, training_arguments
from reproduce.distill.weighted_trainer import PolicyTrainer, mean_loss

FILE = "amc_policy.json"
"""What a policy was trained on, in its folder."""


@dataclass(frozen=True)
class DistillSettings:
    """Settings of a policy's training on what a search found."""

    beta: float = 0.1
    """Independent trajectories of a task are weighted by exp(R / beta), in reward units. What a search drew by its
    weights counts equally."""
    success: float = 1.0
    """Tasks without a return of at least this are left out: there is nothing to imitate."""
    system: str | None = None
    """System message that the policy reads before the instruction. None: it reads none."""
    learning_rate: float = 1e-5
    epochs: int = 3
    batch_size: int = 12
    """Trajectories per step."""
    warm_up: float = 0.1
    """Share of the steps that warm up; then cosine decay."""
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    lora_rank: int | None = 8
    """None: train all weights."""
    lora_alpha: int = 16
    max_tokens: int | None = None
    """Longer trajectories are left out. None: the model's context."""
    validation_share: float = 0.2
    """Share of tasks held out."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the model, in training and in the saved folder."""
    device: str = "cpu"
    """Torch device: "cpu", "cuda", ..."""
    save_steps: int | None = None
    """Steps between checkpoints, from which an interrupted training resumes. None: after each epoch."""
    seed: int = 0
    """Seed of the adapter, the split and the order of rows."""

    def __post_init__(self) -> None:
        """Refuse settings that cannot be trained."""
        for name in ("epochs", "batch_size", "lora_rank", "save_steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigurationError(f"{name} is {value}: expected at least 1")
        if self.beta <= 0:
            raise ConfigurationError(f"beta is {self.beta:g}: expected a number above 0, in reward units")


EMBEDDED = DistillSettings(learning_rate=3e-4, lora_rank=None)
"""Settings for the embedded model, which is small and is trained whole."""


class Distilled(NamedTuple):
    """Facts about a trained policy: the content of `amc_policy.json`."""

    base_model_hash: str
    data_hash: str
    settings: dict[str, Any]
    metrics: dict[str, Any]
    """Numbers of tasks and trajectories, and the loss on held-out tasks before and after the training."""


def distill(
    base_model: str | Path,
    data: str | Path,
    out: str | Path,
    settings: DistillSettings | None = None,
    *,
    progress: Callable[[TrainingProgress], None] | None = None,
    resume: bool = False,
    warn: Callable[[str], None] | None = None,
) -> Distilled:
    """Train a policy to imitate the trajectories of a dataset, and save it atomically.

    Args:
        base_model: folder of the policy, a causal language model with a chat template.
        data: folder of a dataset, of text agents. Its trajectories are weighted within each task (`imitated`).
        out: folder to write; it must be missing or empty. It has the layout of `base_model` and `amc_policy.json`.
        settings: None: the defaults.
        progress: called after each step.
        resume: resume an interrupted training of `out`, with the result of an uninterrupted one. Without an interrupted
            training, start a new one.
        warn: called with each warning.

    Returns:
        The content of `amc_policy.json`.

    Raises:
        ConfigurationError: `out` is not empty or another process is training it; `out` has an interrupted training, and
            `resume` is False or settings or data differ; no task has a success; or the data are of no text agent.
        CheckpointError: the dataset cannot be read, or the model has no chat template.
        StorageError: the result cannot be written.
    """
    settings, state = settings or DistillSettings(), TrainingState(out)
    description = {
        "base_model_hash": weights_hash(base_model),
        "data_hash": dataset_hash(data),
        "settings": asdict(settings),
    }
    with global_random_state_kept(), closing(state), weights_written(state.folder):
        tasks = imitated(iter_records(data, known_outcomes=True), beta=settings.beta, success=settings.success)
        if not tasks:
            raise ConfigurationError(
                f"no task of {data} has a return of at least {settings.success:g}: there is nothing to imitate. "
                "Collect more tasks or easier ones, or lower the return that counts as a success"
            )
        state.check(description, resume=resume)
        state.begin(description)
        with state.left_if_useful(keep_rows=False):
            return _trained(Path(base_model), tasks, settings, state, description, progress, warn)


def _trained(
    base_model: Path,
    tasks: dict[str, list[Imitated]],
    settings: DistillSettings,
    state: TrainingState,
    description: dict[str, Any],
    progress: Callable[[TrainingProgress], None] | None,
    warn: Callable[[str], None] | None,
) -> Distilled:
    tokenizer = AutoTokenizer.from_pretrained(str(base_model), trust_remote_code=False)
    model = _model(base_model, settings)
    training, held_out, too_long = _rows(tasks, tokenizer, model, settings)
    if too_long and warn is not None:
        warn(f"{too_long} trajectories are longer than the model's context and are left out")
    measure = {"pad_id": pad_token(tokenizer, model), "batch_size": settings.batch_size}
    trainer = PolicyTrainer(
        model, _arguments(settings, state.folder, len(training)), training, pad_id=measure["pad_id"],
        warm_up=settings.warm_up, progress=progress,
    )  # fmt: skip
    before = mean_loss(_model(base_model, settings), held_out, **measure)
    trainer.train_from(state.last())
    metrics = {
        "tasks": len(tasks), "trajectories": len(training) + len(held_out), "too_long": too_long,
        "held_out_loss_before": before, "held_out_loss": mean_loss(model, held_out, **measure),
    }  # fmt: skip
    if warn is not None and metrics["held_out_loss"] > before:
        warn(
            f"the loss on held-out tasks rose from {before:.4g} to {metrics['held_out_loss']:.4g}: the policy does not "
            "learn what carries over. Collect more tasks, or lower the learning rate"
        )
    done = Distilled(description["base_model_hash"], description["data_hash"], asdict(settings), metrics)
    _write(model, tokenizer, done, state)
    return done


def _rows(
    tasks: dict[str, list[Imitated]], tokenizer: Any, model: Any, settings: DistillSettings
) -> tuple[list[PolicyRow], list[PolicyRow], int]:
    """Return the rows of training and held-out tasks, and the number of trajectories that are too long."""
    apart = held_out_tasks(tasks, settings.validation_share, np.random.default_rng(settings.seed))
    parts: Sequence[list[Sequence[Imitated]]] = [], []
    for task, trajectories in sorted(tasks.items()):
        parts[task in apart].append(trajectories)
    ends = _end_tokens(model, tokenizer)
    training, held_out = (
        rows_of(
            part, HFChatTokenizer(tokenizer).encode_chat, ends,
            system=settings.system, limit=context(model, settings.max_tokens),
        )
        for part in parts
    )  # fmt: skip
    if not training.rows or not held_out.rows:
        raise ConfigurationError(
            "all trajectories of the training or of the held-out tasks are longer than max_tokens: raise it, or use a "
            "model with a longer context"
        )
    return training.rows, held_out.rows, training.too_long + held_out.too_long


def _end_tokens(model: Any, tokenizer: Any) -> set[int]:
    ends = model.generation_config.eos_token_id
    return {*([ends] if isinstance(ends, int) else ends or []), tokenizer.eos_token_id} - {None}


def _model(base_model: Path, settings: DistillSettings) -> Any:
    """Load the policy, with an adapter unless all weights are trained."""
    torch.manual_seed(settings.seed)
    with quiet():
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(base_model), dtype=getattr(torch, settings.dtype), trust_remote_code=False
        )
        if settings.lora_rank is not None:
            adapter = LoraConfig(
                task_type="CAUSAL_LM", r=settings.lora_rank, lora_alpha=settings.lora_alpha, target_modules="all-linear"
            )
            model = get_peft_model(model, adapter)
    return model.to(settings.device)


def _arguments(settings: DistillSettings, folder: Path, n_rows: int) -> Any:
    shared = ("learning_rate", "epochs", "batch_size", "max_grad_norm", "weight_decay", "device", "seed")
    arguments = training_arguments(ValueTrainingSettings(**{name: getattr(settings, name) for name in shared}), folder)
    if arguments.world_size > 1:
        raise ConfigurationError("a policy is trained in one process: start the command without torchrun")
    arguments.eval_strategy = IntervalStrategy.NO
    arguments.save_steps = settings.save_steps or math.ceil(n_rows / settings.batch_size)
    return arguments


def _write(model: Any, tokenizer: Any, done: Distilled, state: TrainingState) -> None:
    folder = state.empty("result")
    with quiet():
        whole = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
        whole.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    replace_file(folder / FILE, json.dumps(done._asdict(), indent=1) + "\n")
    state.finish(folder)
