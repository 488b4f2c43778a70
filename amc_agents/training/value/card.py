"""The card of a trained value model: the README.md of its folder, as the Hugging Face hub shows it.

Everything in it is read off the checkpoint and a few facts that the training knows; nothing is measured here.
"""

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
from amc_agents.markdown import block, code, text
from amc_agents.markdown import value_table as table
from amc_agents.training.report import LABELS

CARD = "README.md"
PAPER = "https://arxiv.org/abs/2606.05296"
"""Agentic Monte Carlo (AMC); eq. 5, 6 and 7 stand in its section 2.3, table 7 in its appendix B."""


@dataclass(frozen=True)
class CardFacts:
    """What a checkpoint does not say of its training."""

    base_model: str
    """Name on the hub, or a folder, of which the card shows the last part alone."""
    n_tasks: int
    """Of all data, held-out tasks included; so are the next two."""
    n_trajectories: int
    n_states: int
    policies: Sequence[str] = ()
    """Who made the trajectories; empty where the data do not say."""
    n_validation_tasks: int = 0
    """Held out for early stopping and the metrics."""
    n_calibration_tasks: int = 0
    """Held out for the calibration alone."""
    history: Sequence[Mapping[str, Any]] = ()
    """What was logged, in order: a mapping with a `step` each, as the Trainer's `log_history`."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """What else is worth knowing of the training: seconds, tokens, device, ...; label -> value."""


def write_card(folder: str | Path, checkpoint: ValueCheckpoint, facts: CardFacts) -> Path:
    """Writes a model's README.md.

    Args:
        folder: the model's.
        checkpoint: what its `amc_value.json` says.
        facts: what else the card tells.
    """
    path = Path(folder) / CARD
    path.write_text(card(path.parent.resolve().name, checkpoint, facts), encoding="utf-8")
    return path


def card(name: str, checkpoint: ValueCheckpoint, facts: CardFacts) -> str:
    """The text of a card.

    Args:
        name: of the model's folder.
        checkpoint: what its `amc_value.json` says.
        facts: what else the card tells.
    """
    parts = [
        _front_matter(facts),
        f"# {text(name)}: a value model for language agents",
        _what_it_says(checkpoint, facts),
        *_section("How to use it", _use(name, checkpoint)),
        *_section("Data", _data(checkpoint, facts)),
        *_section("On held-out tasks", _metrics(checkpoint)),
        *_section("Calibration", _calibration(checkpoint)),
        *_section("Training", _training(checkpoint, facts)),
        *_section("Prompt format", _prompts(checkpoint)),
        *_section("Golden scores", _golden(checkpoint)),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, parts: Iterator[str]) -> Iterator[str]:
    yield f"## {title}"
    yield from parts


def _front_matter(facts: CardFacts) -> str:
    lines = ["library_name: transformers", "pipeline_tag: text-classification"]
    if _on_the_hub(facts.base_model):
        lines += [f"base_model: {json.dumps(facts.base_model)}", "base_model_relation: finetune"]
    lines += ["tags:", *(f"- {tag}" for tag in ("amc-agents", "value-model", "agents", "sequential-monte-carlo"))]
    return "\n".join(["---", *lines, "---"])


def _what_it_says(checkpoint: ValueCheckpoint, facts: CardFacts) -> str:
    lines = [
        f"Reads the trajectory of a language agent up to state `s_t` and predicts {_prediction(checkpoint)}. A value "
        f"is in the reward units of the agent's world: `{_formula(checkpoint)}`.",
        f"Made from {code(_shown(facts.base_model))} by {_library()} for "
        f"[Agentic Monte Carlo]({PAPER}): several copies of an agent play side by side, and those that this model "
        "finds promising are continued in place of the others. It knows the policy, the world and the prompts that it "
        "was trained on, and no others.",
    ]
    if _setting(checkpoint, "shuffle_targets"):
        lines.append("**A control**: it was trained on shuffled targets, and is worthless by design.")
    return "\n\n".join(lines)


def _prediction(checkpoint: ValueCheckpoint) -> str:
    whole = checkpoint.target == "return"
    letter = "R" if whole else "G"
    of = "the whole return, `R = r_1 + ... + r_T`" if whole else "the return still to come, `G = r_{t+1} + ... + r_T`"
    if checkpoint.beta is not None:
        return (
            f"`beta log E[exp({letter} / beta) given s_t]` with beta = {checkpoint.beta:g}, of {of} "
            f"([eq. 5]({PAPER})). **It holds for runs with beta = {checkpoint.beta:g} alone**; others are refused"
        )
    if checkpoint.link == "sigmoid":
        return f"{of}, which is 0 or 1: its mean ([eq. 7]({PAPER}) with binary cross-entropy for the squared error)"
    if _setting(checkpoint, "loss") == "weighted":
        return (
            f"{of}: its mean with weights `exp({letter} / beta)`, beta = {text(_setting(checkpoint, 'beta'))}, so "
            f"nearer to what the best runs earn ([table 7]({PAPER}))"
        )
    return f"{of}: its mean over what the policy does ([eq. 7]({PAPER}))"


def _formula(checkpoint: ValueCheckpoint) -> str:
    found = "score" if checkpoint.link == "identity" else "sigmoid(score)"
    found = found if checkpoint.scale == 1.0 else f"{checkpoint.scale:g} x {found}"
    return "value = " + (found if checkpoint.calibration is None else f"calibration({found})")


def _use(name: str, checkpoint: ValueCheckpoint) -> Iterator[str]:
    folder = shlex.quote(name)
    beta = "" if checkpoint.beta is None else f", beta={checkpoint.beta:g}"
    limit = "" if checkpoint.max_tokens is None else f" --max-model-len {checkpoint.max_tokens}"
    served = f"vllm:http://127.0.0.1:8000?model={name}"
    yield (
        "In this process, with transformers (`pip install 'amc-agents[train]'`); here and below the folder is named "
        "from the one that it lies in:"
    )
    yield block(
        f"from amc_agents import AtSteps, amc\n\nbetter = amc(agent, critic={json.dumps('hf:' + name)}{beta}, "
        "resample=AtSteps(4), environment=...)",
        "python",
    )
    yield "On a server, with vLLM; the first command finds the right options by itself, the second is what it runs:"
    yield block(
        f"amc serve value {folder}\n"
        f'vllm serve {folder} --runner pooling --pooler-config \'{{"pooling_type": "LAST"}}\' '
        f"--served-model-name {folder} --host 127.0.0.1{limit} --dtype {_number_type(checkpoint)} "
        "--enable-prefix-caching\n"
        f"amc doctor --critic {shlex.quote(served)}",
        "sh",
    )
    yield (
        f"The critic is then {code(served)}, wherever one is named. It renders and tokenizes prompts itself, compares "
        "the golden scores below at its first use, and makes values of the raw scores that a server answers, by link, "
        f"scale and calibration of `{FILE}`."
    )


def _number_type(checkpoint: ValueCheckpoint) -> str:
    return str(_setting(checkpoint, "dtype") or "auto")


def _data(checkpoint: ValueCheckpoint, facts: CardFacts) -> Iterator[str]:
    rows: dict[str, Any] = {
        "tasks": facts.n_tasks,
        "held out for metrics and early stopping": facts.n_validation_tasks,
        "held out for calibration": facts.n_calibration_tasks,
        "trajectories": facts.n_trajectories,
        "states": facts.n_states,
        "policies": tuple(facts.policies) or "not recorded",
        "hash": checkpoint.data_hash,
    }
    yield table(["data", ""], rows.items())


def _metrics(checkpoint: ValueCheckpoint) -> Iterator[str]:
    metrics = checkpoint.metrics
    known = [[label, metrics[name]] for name, label in LABELS.items() if name in metrics]
    other = [
        [name, value]
        for name, value in metrics.items()
        if name not in LABELS and (value is None or isinstance(value, str | int | float))
    ]
    yield "Of values before calibration, on tasks that decided nothing except when to stop:"
    yield table(["metric", "figure"], known + other)
    by_step = metrics.get("auc_by_step") or {}
    if by_step:
        yield "AUC of the values at step t against the trajectory's final success:"
        yield table(["t", "AUC"], ((int(t), one) for t, one in by_step.items()))


def _calibration(checkpoint: ValueCheckpoint) -> Iterator[str]:
    if checkpoint.calibration is None:
        yield "None was fitted: values are taken as they come."
        return
    yield f"Applied to every value: {code(_described(checkpoint))}."
    report = checkpoint.metrics.get("calibration")
    if not report:
        return
    yield (
        f"Fitted on {report['n_states']} states of {report['n_tasks']} held-out tasks. The figures are of tasks that a "
        f"map was not fitted on ({report['n_folds']} parts), ± standard error over tasks."
        + (" States are weighted as in the loss." if _setting(checkpoint, "loss") == "weighted" else "")
    )
    rows = [
        [label, *(_estimate(report[f"{name}_{when}"]) for when in ("before", "after", "change"))]
        for name, label in (("error", "expected calibration error"), ("squared", "mean squared error"))
    ]
    yield table(["", "before", "after", "change"], rows)
    yield (
        f"The calibration error is the mean distance of prediction and outcome over {len(report['after'])} bins; of "
        f"values that are all right it would be about {report['error_by_luck']:.4f}, by luck."
    )
    for when in ("before", "after"):
        rows = [
            [one["predicted"], _plus_minus(one["observed"], one["standard_error"]), one["n"]] for one in report[when]
        ]
        yield table([f"{when}: predicted", "what came of it", "states"], rows)


def _described(checkpoint: ValueCheckpoint) -> str:
    plain: dict[str, Any] = {} if checkpoint.calibration is None else checkpoint.calibration.to_json()
    if plain["kind"] == "affine":
        return f"{plain['slope']:.4g} x value {plain['intercept']:+.4g}"
    low, high = plain["calibrated"][0], plain["calibrated"][-1]
    return f"a rising curve of {len(plain['value'])} corners (isotonic regression), from {low:.4g} to {high:.4g}"


def _estimate(one: Mapping[str, float]) -> str:
    return _plus_minus(one["mean"], one["standard_error"])


def _plus_minus(mean: float, error: float) -> str:
    return f"{mean:.4f} ± {error:.4f}"


def _training(checkpoint: ValueCheckpoint, facts: CardFacts) -> Iterator[str]:
    settings = {key: value for key, value in _flat(checkpoint.settings) if not key.startswith("prompt_format")}
    more = {"base model's weights (SHA-256)": checkpoint.base_model_hash, **facts.run}
    yield table(["setting", "value"], (settings | more).items())
    rows = _by_step(facts.history)
    if rows:
        shown = _thinned(rows)
        every = (
            ""
            if len(shown) == len(rows)
            else f" ({len(shown)} of {len(rows)} logged steps; each look at held-out data)"
        )
        yield f"Metrics by step{every}:"
        columns = list(dict.fromkeys(name for row in shown for name in row))
        yield table(columns, ([row.get(name, "") for name in columns] for row in shown))


def _by_step(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a step: training and held-out figures are logged apart."""
    rows: dict[Any, dict[str, Any]] = {}
    for entry in history:
        plain = {
            name: value
            for name, value in entry.items()
            if isinstance(value, int | float) and not name.endswith(_OF_THE_CLOCK)
        }
        rows.setdefault(entry.get("step"), {"step": entry.get("step")}).update(plain)
    return list(rows.values())


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most about `_MOST_ROWS`: the first, the last, those with held-out figures, and of the rest every k-th."""
    spacing = -(-len(rows) // _MOST_ROWS)
    ends = (0, len(rows) - 1)
    return [
        row
        for index, row in enumerate(rows)
        if index in ends or index % spacing == 0 or any(name.startswith(("eval_", "validation_")) for name in row)
    ]


def _prompts(checkpoint: ValueCheckpoint) -> Iterator[str]:
    written = checkpoint.prompt_format
    most = "no limit" if checkpoint.max_tokens is None else f"{checkpoint.max_tokens} tokens"
    yield (
        f"{text(written.name)}, version {written.version}; at most {most}, older rounds being dropped. First the task, "
        "then a segment per step; each ends with the marker, at whose last token the score is read. Every segment is "
        "tokenized on its own" + (f", after the ids {list(checkpoint.prefix_ids)}." if checkpoint.prefix_ids else ".")
    )
    for label, template in (("opening", written.opening), ("round", written.round), ("marker", written.marker)):
        yield f"{label.capitalize()}:"
        yield block(template)


def _golden(checkpoint: ValueCheckpoint) -> Iterator[str]:
    yield (
        f"Raw scores of prompts that `{FILE}` holds, compared wherever the model is loaded or served (within "
        f"{checkpoint.tolerance:g}):"
    )
    rows = [
        [number, len(one.segments) - 1, len(one.token_ids), f"{one.score:.6f}"]
        for number, one in enumerate(checkpoint.golden, 1)
    ]
    yield table(["prompt", "steps", "tokens", "score"], rows)
    if checkpoint.golden:
        shortest = min(checkpoint.golden, key=lambda one: len(one.token_ids))
        yield f"The shortest, of score {shortest.score:.6f}:"
        yield block("".join(shortest.segments))


def _setting(checkpoint: ValueCheckpoint, name: str) -> Any:
    """A setting by the last part of its name; None where there is none."""
    return next((value for key, value in _flat(checkpoint.settings) if key.rpartition(".")[2] == name), None)


def _library() -> str:
    try:
        return f"amc-agents {version('amc-agents')}"
    except PackageNotFoundError:  # it runs from a checkout that was never installed
        return "amc-agents"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(base_model: str) -> str:
    """A model's name; of a folder its last part, as the rest says where somebody keeps files."""
    return base_model if _on_the_hub(base_model) else PurePath(base_model).name or base_model


def _on_the_hub(base_model: str) -> bool:
    return _HUB_NAME.fullmatch(base_model) is not None and not Path(base_model).is_dir()


_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""organisation/model."""
_MOST_ROWS = 60
_OF_THE_CLOCK = ("_runtime", "_per_second", "total_flos")
"""Ends of the names of logged figures that are none of the model's."""
