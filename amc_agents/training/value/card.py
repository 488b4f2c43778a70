"""The model card of a trained value model: `README.md` in its folder."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Any

from amc_agents.critics.value.checkpoint import FILE, ValueCheckpoint
from amc_agents.critics.value.value_calibration import AffineCalibration, LogisticCalibration
from amc_agents.errors import MissingExtra
from amc_agents.files import replace_file
from amc_agents.markdown import block, code, text, value_table
from amc_agents.training.report import COMPARED, LABELS, ranking_rows

try:
    from huggingface_hub import ModelCard, ModelCardData
except ImportError as error:
    raise MissingExtra(error.name or "huggingface_hub", "train") from error

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
