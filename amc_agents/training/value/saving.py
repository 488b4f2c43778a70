"""What is saved beside the weights of a value model: golden scores, and the model card (`README.md`)."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from amc_agents.critics.calibration import AffineCalibration, LogisticCalibration
from amc_agents.critics.render import Encoder
from amc_agents.critics.saved import (
    BFLOAT16,
    FIRST_TOKEN_POOLING,
    MEAN_POOLING,
    WITHOUT_ADAPTER,
    Golden,
    probes,
)
from amc_agents.critics.value.checkpoint import FILE, ValueCheckpoint
from amc_agents.errors import MissingExtra
from amc_agents.files import replace_file
from amc_agents.markdown import block, code, text, value_table
from amc_agents.models.tokenizers import as_stored
from amc_agents.training.metrics import COMPARED, LABELS, ranking_rows
from amc_agents.types import Trajectory

try:
    import torch
    from huggingface_hub import ModelCard, ModelCardData
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


class GoldenPrompt(NamedTuple):
    """A golden prompt without a score."""

    segments: tuple[str, ...]
    token_ids: tuple[int, ...]


class GoldenScores(NamedTuple):
    """Golden prompts with their scores, and the scores of the probes, for a checkpoint."""

    golden: tuple[Golden, ...]
    probe_scores: tuple[float, ...]


def golden_prompts(encoder: Encoder, trajectories: Sequence[Trajectory]) -> list[GoldenPrompt]:
    """Choose a state from each of a few trajectories: from the first state of the first to the last of the last."""
    chosen = [trajectories[i] for i in np.linspace(0, len(trajectories) - 1, _GOLDEN).round().astype(int)]
    prompts = []
    for index, whole in enumerate(chosen):
        state = whole.prefix(round(len(whole.steps) * index / (_GOLDEN - 1)))
        row = encoder.rows(state)[-1]
        texts = encoder.format.segments(state)
        kept = (texts[0], *texts[len(texts) - len(encoder.newest(state)) + 1 :])
        prompts.append(GoldenPrompt(tuple(as_stored(text, encoder.tokenize) for text in kept), row.ids))
    return prompts


def scores_without_adapter(model: Any, prompts: Sequence[GoldenPrompt]) -> list[float]:
    """Score prompts with the trained head over the base model, with the adapter of the `PeftModel` disabled."""
    base = model.get_base_model()
    with model.disable_adapter():
        hidden = [_hidden(base, prompt.token_ids)[-1] for prompt in prompts]
    # Disabling the adapter disables the trained head too, so the head is applied after the block.
    with torch.no_grad():
        return [float(base.score(state)[0]) for state in hidden]


def golden_scores(
    merged: Any, prompts: Sequence[GoldenPrompt], without_adapter: Sequence[float], encoder: Encoder
) -> GoldenScores:
    """Score prompts with the saved model and under its typical faults.

    Args:
        merged: the model with its adapter merged in. A float32 model is converted to bfloat16: call this last.
        prompts: `[n]` the golden prompts.
        without_adapter: `[n]` from `scores_without_adapter`, before the merge.
        encoder: made the prompts. If its limit leaves no room for the probes, they are omitted.
    """
    golden = [
        Golden(prompt.segments, prompt.token_ids, _score(merged, prompt.token_ids), _faults(merged, prompt, unadapted))
        for prompt, unadapted in zip(prompts, without_adapter, strict=True)
    ]
    rows = probes(golden, encoder.prefix_ids)
    fits = encoder.max_tokens is None or len(rows[0]) <= encoder.max_tokens
    probe_scores = tuple(_score(merged, ids) for ids in rows) if fits else ()
    if merged.dtype == torch.float32:
        merged.to(torch.bfloat16)
        golden = [
            replace(prompt, faults={**prompt.faults, BFLOAT16: _score(merged, prompt.token_ids)}) for prompt in golden
        ]
    return GoldenScores(tuple(golden), probe_scores)


def _faults(merged: Any, prompt: GoldenPrompt, without_adapter: float) -> dict[str, float]:
    scores = _token_scores(merged, prompt.token_ids)
    return {
        MEAN_POOLING: float(scores.mean()),
        FIRST_TOKEN_POOLING: float(scores[0]),
        WITHOUT_ADAPTER: without_adapter,
    }


def _score(model: Any, ids: Sequence[int]) -> float:
    with torch.no_grad():
        return float(model(input_ids=torch.tensor([list(ids)], device=model.device)).logits[0, 0])


def _token_scores(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Return the `[S]` scores of the head at every token of a prompt."""
    with torch.no_grad():
        return torch.as_tensor(model.score(_hidden(model, ids))[:, 0]).float()


def _hidden(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Return the `[S, D]` normalised final hidden states."""
    transformer = getattr(model, model.base_model_prefix)
    with torch.no_grad():
        output = transformer(input_ids=torch.tensor([list(ids)], device=model.device), use_cache=False)
    return torch.as_tensor(output.last_hidden_state[0])


_GOLDEN = 5
"""Number of golden prompts of a checkpoint."""


CARD = "README.md"
PAPER = "https://arxiv.org/abs/2606.05296"
"""Agentic Monte Carlo (AMC): equations 5 to 7 are in section 2.3, table 7 is in appendix B."""
TEMPLATE = Path(__file__).with_name("card.md.jinja")


@dataclass(frozen=True)
class CardFacts:
    """Facts about a training run that the checkpoint does not record."""

    base_model: str
    """Name on the hub, or a folder; the card shows only the last part of a folder's path."""
    n_tasks: int
    """Tasks of all data, held-out tasks included."""
    n_trajectories: int
    """Trajectories of all data."""
    n_states: int
    """States of all data."""
    policies: Sequence[str] = ()
    """Policies that made the trajectories; empty if the data do not record them."""
    n_validation_tasks: int = 0
    """Tasks held out for early stopping and metrics."""
    n_calibration_tasks: int = 0
    """Tasks held out for calibration only."""
    history: Sequence[Mapping[str, Any]] = ()
    """Log entries in order, each with its `step`, like the Trainer's `log_history`."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """Other facts about the run (seconds, tokens, device, ...): label -> value."""


def write_card(folder: str | Path, checkpoint: ValueCheckpoint, facts: CardFacts) -> Path:
    """Write a model's `README.md`, atomically.

    Args:
        folder: the model's folder; its name becomes the model's name.
        checkpoint: contents of its `amc_value.json`.
        facts: the rest of the card's content.

    Raises:
        StorageError: the file cannot be written.
    """
    path = Path(folder) / CARD
    replace_file(path, card(path.parent.resolve().name, checkpoint, facts))
    return path


def card(name: str, checkpoint: ValueCheckpoint, facts: CardFacts) -> str:
    """Render a card.

    Args:
        name: the name of the model's folder.
        checkpoint: contents of its `amc_value.json`.
        facts: the rest of the card's content.
    """
    rows = _rows_by_step(facts.history)
    shown = _thinned(rows)
    columns = list(dict.fromkeys(column for row in shown for column in row))
    served = f"vllm:http://127.0.0.1:8000?model={name}"
    rendered = ModelCard.from_template(
        _metadata(facts.base_model),
        template_path=str(TEMPLATE),
        text=text, code=code, block=block, table=value_table, quote=shlex.quote, reliability=_reliability,
        setting=lambda setting: _setting(checkpoint, setting),
        checkpoint=checkpoint, name=name, paper=PAPER, file=FILE, base_model=_shown(facts.base_model),
        library=_library(), folder=shlex.quote(name), critic=json.dumps(f"hf:{name}"), served=served,
        data=_data(checkpoint, facts).items(), metrics=_metrics(checkpoint.metrics),
        ranking=checkpoint.metrics.get("ranking") or {}, warnings=checkpoint.metrics.get("warnings") or (),
        ranking_rows=ranking_rows, compared=COMPARED,
        auc_by_step=[(int(t), auc) for t, auc in (checkpoint.metrics.get("auc_by_step") or {}).items()],
        calibration=_describe_calibration(checkpoint),
        calibration_errors=_calibration_errors(checkpoint.metrics.get("calibration") or {}),
        settings=_settings(checkpoint, facts).items(),
        history=[[row.get(column, "") for column in columns] for row in shown], history_columns=columns,
        n_logged=len(rows),
        golden=[
            (number, len(golden.segments) - 1, len(golden.token_ids), f"{golden.score:.6f}")
            for number, golden in enumerate(checkpoint.golden, 1)
        ],
        shortest=min(checkpoint.golden, key=lambda golden: len(golden.token_ids), default=None),
    )  # fmt: skip
    return f"{rendered}\n"


def _metadata(base_model: str) -> ModelCardData:
    on_hub = _on_the_hub(base_model)
    return ModelCardData(
        library_name="transformers",
        pipeline_tag="text-classification",
        base_model=base_model if on_hub else None,
        base_model_relation="finetune" if on_hub else None,
        tags=["amc-agents", "value-model", "agents", "sequential-monte-carlo"],
    )


def _data(checkpoint: ValueCheckpoint, facts: CardFacts) -> dict[str, Any]:
    return {
        "tasks": facts.n_tasks,
        "held out for metrics and early stopping": facts.n_validation_tasks,
        "held out for calibration": facts.n_calibration_tasks,
        "trajectories": facts.n_trajectories,
        "states": facts.n_states,
        "policies": tuple(facts.policies) or "not recorded",
        "hash": checkpoint.data_hash,
    }


def _metrics(metrics: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The labelled metrics first, then every other plain value."""
    labelled = [(label, metrics[name]) for name, label in LABELS.items() if name in metrics]
    others = [
        (name, value)
        for name, value in metrics.items()
        if name not in LABELS and (value is None or isinstance(value, str | int | float))
    ]
    return labelled + others


def _describe_calibration(checkpoint: ValueCheckpoint) -> str:
    curve = checkpoint.calibration
    if curve is None:
        return ""
    if isinstance(curve, AffineCalibration):
        return f"{curve.slope:.4g} x value {curve.intercept:+.4g}"
    if isinstance(curve, LogisticCalibration):
        logit = f"{curve.slope:.4g} x value {curve.intercept:+.4g}"
        return f"{curve.low:.4g} + {curve.high - curve.low:.4g} x sigmoid({logit})"
    low, high = curve.calibrated[0], curve.calibrated[-1]
    return f"a rising curve of {len(curve.value)} corners (isotonic regression), from {low:.4g} to {high:.4g}"


def _calibration_errors(report: Mapping[str, Any]) -> list[list[str]]:
    if not report:
        return []
    return [
        [label, *(_estimate(**report[f"{name}_{when}"]) for when in ("before", "after", "change"))]
        for name, label in (("error", "expected calibration error"), ("squared", "mean squared error"))
    ]


def _reliability(bins: Sequence[Mapping[str, Any]]) -> list[tuple[float, str, int]]:
    return [(bin["predicted"], _estimate(bin["observed"], bin["standard_error"]), bin["n"]) for bin in bins]


def _estimate(mean: float, standard_error: float) -> str:
    return f"{mean:.4f} ± {standard_error:.4f}"


def _settings(checkpoint: ValueCheckpoint, facts: CardFacts) -> dict[str, Any]:
    settings = {key: value for key, value in _flat(checkpoint.settings) if not key.startswith("prompt_format")}
    return {**settings, "base model's weights (SHA-256)": checkpoint.base_model_hash, **facts.run}


def _setting(checkpoint: ValueCheckpoint, name: str) -> Any:
    """A setting by the last part of its name, or None."""
    return next((value for key, value in _flat(checkpoint.settings) if key.rpartition(".")[2] == name), None)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _rows_by_step(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Merge the log entries of each step: the Trainer logs training and evaluation separately."""
    rows: dict[Any, dict[str, Any]] = {}
    for entry in history:
        figures = {
            name: value
            for name, value in entry.items()
            if isinstance(value, int | float) and not name.endswith(_TIMING_SUFFIXES)
        }
        rows.setdefault(entry.get("step"), {"step": entry.get("step")}).update(figures)
    return list(rows.values())


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep about `_MAX_ROWS`: the first, the last, every evaluation, and every k-th of the rest."""
    spacing = -(-len(rows) // _MAX_ROWS)
    ends = (0, len(rows) - 1)
    return [
        row
        for index, row in enumerate(rows)
        if index in ends or index % spacing == 0 or any(name.startswith(("eval_", "validation_")) for name in row)
    ]


def _library() -> str:
    try:
        return f"amc-agents {version('amc-agents')}"
    except PackageNotFoundError:  # a checkout that is not installed
        return "amc-agents"


def _shown(base_model: str) -> str:
    """A model's name; only the last part of a folder's path, since the rest is private."""
    return base_model if _on_the_hub(base_model) else PurePath(base_model).name or base_model


def _on_the_hub(base_model: str) -> bool:
    return _HUB_NAME.fullmatch(base_model) is not None and not Path(base_model).is_dir()


_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""organisation/model."""
_MAX_ROWS = 60
_TIMING_SUFFIXES = ("_runtime", "_per_second", "total_flos")
"""Endings of logged names that say nothing about the model."""
