"""Train a value model: LoRA regression of the return still to come (AMC, eq. 7 and table 7).

All states of a trajectory are scored in one forward pass: prompts are append-only and attention is causal, so the score
at the mark of a state is the score of that prefix alone. Under `torchrun` or `accelerate launch` every process calls
`train_value` with the same arguments; only the first process writes files and reports progress.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from amc_agents.critics.render import DIALOGUE, Encoder
from amc_agents.critics.value.checkpoint import ValueCheckpoint, weights_hash
from amc_agents.errors import AmcError, MissingExtra
from amc_agents.training.critic_calibration import calibrate, states_of
from amc_agents.training.data_checks import check_data, check_words, warning_of
from amc_agents.training.dataset import data_hash, dataset_hash
from amc_agents.training.metrics import evaluate
from amc_agents.training.ranking import ranking
from amc_agents.training.settings import HARDWARE, ValueTrainingSettings
from amc_agents.training.training_state import ROWS, TrainingState, weights_written
from amc_agents.training.value.row_building import (
    ValueSets,
    build_rows,
    held_out_values,
    selected_trajectories,
    split_rows,
    tokenizer_hash,
)
from amc_agents.training.value.saving import (
    CardFacts,
    golden_prompts,
    golden_scores,
    scores_without_adapter,
    write_card,
)
from amc_agents.types import Trajectory

try:
    import torch
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error

from amc_agents.training.fine_tuning import context, make_encoder, pad_token, round_to_half
from amc_agents.training.value.classifier import export, load_base
from amc_agents.training.value.one_pass import use_packing
from amc_agents.training.value.trainer import (
    TrainingProgress,
    ValueTrainer,
    global_random_state_kept,
    training_arguments,
)

__all__ = ["EMBEDDED", "TrainingProgress", "ValueTrainingSettings", "leave_together", "train_value"]

EMBEDDED = ValueTrainingSettings(learning_rate=3e-3, epochs=4, prompt_format=DIALOGUE)
"""Settings for the embedded model, which is small and needs a high learning rate."""

T = TypeVar("T")


def train_value(
    base_model: str | Path,
    data: Sequence[Trajectory] | str | Path,
    out: str | Path,
    settings: ValueTrainingSettings | None = None,
    *,
    progress: Callable[[TrainingProgress], None] | None = None,
    resume: bool = False,
    anyway: bool = False,
    warn: Callable[[str], None] | None = None,
) -> ValueCheckpoint:
    """Train a value model and save it atomically.

    `out` becomes the folder of an `AutoModelForSequenceClassification` (LoRA merged; `hf:out` and vLLM load it), with
    `amc_value.json` (format, golden scores, settings, metrics), `adapter/` (LoRA and head, float16) and a model card.
    During the training a hidden folder beside it, `.NAME.training`, holds checkpoints. It remains if the training is
    interrupted after the first checkpoint.

    Args:
        base_model: folder of a causal language model and its tokenizer.
        data: finished trajectories of at least two tasks, or the folder of a dataset, which may be larger than memory.
        out: folder to write; it must be missing or empty.
        settings: None: the paper's.
        progress: called after each step, on the first process.
        resume: resume an interrupted training of `out`, with the result of an uninterrupted one. Without an interrupted
            training, start a new one.
        anyway: train although the base model cannot read the data, or all outcomes are equal.
        warn: called before the training, on the first process, with each warning about the data. Warnings are also in
            `metrics["warnings"]`.

    Returns:
        The content of `amc_value.json`. Its `metrics` are computed on held-out tasks, before calibration; `ranking`
        says whether the model ranks runs of the same task (`amc_agents.training.ranking`).

    Raises:
        ConfigurationError: `out` is not empty or another process is training it; `out` has an interrupted training, and
            `resume` is False or settings or data differ; a setting does not suit the data; all outcomes are equal; or
            the base model's vocabulary lacks words of the data.
        CheckpointError: no outcome of the data is known.
        StorageError: the state or the result cannot be written.
    """
    settings = settings or ValueTrainingSettings()
    state = TrainingState(out)
    begun = time.perf_counter()
    with global_random_state_kept(), closing(state), weights_written(state.folder):
        arguments = training_arguments(settings, state.folder)

        def begin() -> dict[str, Any]:
            description = _description(base_model, data, settings)
            state.check(description, resume=resume)
            state.begin(description)
            return description

        description = _on_first(begin)
        with state.left_if_useful(keep_rows=isinstance(data, str | Path)):
            model, tokenizer = load_base(base_model, settings)
            encoder = make_encoder(tokenizer, settings.prompt_format, context(model, settings.max_tokens))
            checked = _on_first(lambda: _checked(data, encoder, settings, anyway=anyway, warn=warn))
            rows = _on_first(
                lambda: build_rows(
                    data, state.folder / ROWS, encoder, settings.objective, tokenizer=tokenizer_hash(tokenizer),
                    success=settings.success, best_of=settings.best_of, policies=settings.policies,
                )
            )  # fmt: skip
            sets = split_rows(data, rows, settings)
            trainer = ValueTrainer(
                model, arguments, sets.training, sets.held_out, settings,
                pad_id=pad_token(tokenizer, model), packed=use_packing(model, settings.packing), progress=progress,
            )  # fmt: skip
            trainer.train_from(state.last())
        # The adapter is saved in half precision, so that precision is what is measured and merged.
        round_to_half(trainer.model)
        training = _Training(base_model, tokenizer, encoder, sets, trainer)
        checkpoint = _measured(training, description, data)
        checkpoint = replace(checkpoint, metrics=checkpoint.metrics | checked)
        # Every process takes part in gathering a sharded model.
        weights = trainer.accelerator.get_state_dict(trainer.model) if trainer.is_fsdp_enabled else None

        def finish() -> ValueCheckpoint:
            whole = trainer.accelerator.unwrap_model(trainer.model)
            if weights is not None:
                whole, _ = load_base(base_model, settings)
                whole.load_state_dict(weights)
            return _written(training, whole.eval(), checkpoint, state, time.perf_counter() - begun)

        return _on_first(finish)


def leave_together() -> None:
    """Wait for all processes of a training, then end its process group. Without a process group, do nothing.

    A process that exits while another still communicates with it makes the other one abort.
    """
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


class _Training(NamedTuple):
    """A finished training, before its result is written."""

    base_model: str | Path
    tokenizer: Any
    encoder: Encoder
    sets: ValueSets
    trainer: ValueTrainer


def _on_first(work: Callable[[], T]) -> T:
    """Run `work` on the first process while the others wait; return its result, or raise its error, on all of them."""
    outcome: list[Any] = [None, None]
    several = torch.distributed.is_initialized()
    if not several or torch.distributed.get_rank() == 0:
        try:
            outcome[0] = work()
        except (AmcError, OSError) as error:
            outcome[1] = error
    if several:
        torch.distributed.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    result: T = outcome[0]
    return result


def _description(
    base_model: str | Path, data: Sequence[Trajectory] | str | Path, settings: ValueTrainingSettings
) -> dict[str, Any]:
    """Describe everything that determines the result of a training."""
    chosen = {name: value for name, value in asdict(settings).items() if name not in HARDWARE}
    return {
        "base_model_hash": weights_hash(base_model),
        "data_hash": dataset_hash(data) if isinstance(data, str | Path) else data_hash(data),
        "settings": json.loads(json.dumps(chosen)),
    }


def _checked(
    data: Sequence[Trajectory] | str | Path,
    encoder: Encoder,
    settings: ValueTrainingSettings,
    *,
    anyway: bool,
    warn: Callable[[str], None] | None,
) -> dict[str, Any]:
    """Check the data, and return what the metrics say about it: warnings, and the share of unknown words."""
    words = check_words(data, encoder, anyway=anyway)
    records = selected_trajectories(data, best_of=settings.best_of, policies=settings.policies)
    about_data = check_data(records, validation_share=settings.validation_share, seed=settings.seed, anyway=anyway)
    warnings = [*warning_of(words, data, encoder), *about_data]
    if warn is not None:
        for warning in warnings:
            warn(warning)
    return {"warnings": warnings, "unknown_words": words.share}


def _measured(
    training: _Training, description: Mapping[str, Any], data: Sequence[Trajectory] | str | Path
) -> ValueCheckpoint:
    """Measure the model on held-out tasks, calibrate it, and return its checkpoint without golden scores."""
    _, _, encoder, sets, trainer = training
    settings = trainer.settings
    objective = settings.objective
    checkpoint = ValueCheckpoint(
        prompt_format=settings.prompt_format,
        max_tokens=encoder.max_tokens,
        prefix_ids=encoder.prefix_ids,
        golden=(),
        tolerance=1e-4 if settings.dtype == "float32" else 3e-2,
        link=objective.link,
        target=objective.target,
        beta=objective.stored_beta,
        base_model_hash=description["base_model_hash"],
        data_hash=description["data_hash"],
        settings=json.loads(json.dumps(asdict(settings))),
    )
    values = [checkpoint.uncalibrated(scores) for scores in trainer.scores(sets.held_out)]
    scored = held_out_values(data, sets.held_out, values, settings)
    rank = ranking(scored, predicts=objective.target, seed=settings.seed).as_plain()
    metrics = {"ranking": rank} | evaluate(sets.held_out, values) | {"epochs": trainer.evaluations()}
    if sets.calibration is None or settings.calibration == "none":
        return replace(checkpoint, metrics=metrics)
    values = [checkpoint.uncalibrated(scores) for scores in trainer.scores(sets.calibration)]
    states = states_of(sets.calibration, values, sets.calibration.task_of_row, target=objective.target)
    calibration, report = calibrate(settings.calibration, states, settings.seed)
    return replace(checkpoint, metrics=metrics | {"calibration": report.as_plain()}, calibration=calibration)


def _written(
    training: _Training, model: Any, checkpoint: ValueCheckpoint, state: TrainingState, seconds: float
) -> ValueCheckpoint:
    """Write the result and return the checkpoint with its golden scores."""
    base_model, tokenizer, encoder, sets, trainer = training
    # The card contains the folder's name.
    result = state.empty("result") / state.out.resolve().name
    result.mkdir()
    prompts = golden_prompts(encoder, sets.examples)
    without_adapter = scores_without_adapter(model, prompts)
    merged = export(model, tokenizer, base_model, result, trainer.settings)
    golden, probe_scores = golden_scores(merged, prompts, without_adapter, encoder)
    checkpoint = replace(checkpoint, golden=golden, probe_scores=probe_scores)
    checkpoint.save(result)
    write_card(result, checkpoint, _facts(training, seconds))
    state.finish(result)
    return checkpoint


def _facts(training: _Training, seconds: float) -> CardFacts:
    sets, trainer = training.sets, training.trainer
    run = {
        "processes": trainer.args.world_size,
        "device": trainer.settings.device,
        "tokens of the data": sets.summary.tokens,
    }
    return CardFacts(
        base_model=str(training.base_model),
        n_tasks=sets.summary.tasks,
        n_trajectories=sets.summary.trajectories,
        n_states=sets.summary.states,
        policies=sets.policies,
        n_validation_tasks=len(sets.held_out.tasks),
        n_calibration_tasks=0 if sets.calibration is None else len(sets.calibration.tasks),
        history=[{name: entry[name] for name in _BY_STEP if name in entry} for entry in trainer.state.log_history],
        run=run | {"seconds, of the last run where it was interrupted": round(seconds)},
    )


_BY_STEP = ("step", "epoch", "loss", "grad_norm", "learning_rate", "eval_loss")
"""Columns of Trainer's log that the card shows."""
