"""What an exploration found: curves and scores of each explorer, as JSON, Markdown and a table for the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from amc_agents.bench.exploration.agents import Explorer
from amc_agents.bench.exploration.measures import (
    Curve,
    curve,
    lost_turns,
    minimum_frequencies,
    regrets,
    suffix_failures,
)
from amc_agents.bench.exploration.trials import Trial
from amc_agents.bench.statistics import Estimate, Paired, estimate, paired
from amc_agents.files import replace_file
from amc_agents.markdown import table as markdown_table
from amc_agents.types import FloatArray

VERSION = 1


@dataclass(frozen=True)
class ExplorerResult:
    """One explorer's results. `K` episodes."""

    name: str
    agent: str
    temperature: float | None
    n_trials: int
    episode_regret: Curve
    """`[K]` regret of each episode."""
    cumulative_regret: Curve
    """`[K]` sum of the regrets up to an episode."""
    suffix_failure: Curve
    """`[K]` frequency; see `amc_agents.bench.exploration.measures`."""
    minimum_frequency: Curve
    """`[K]` scaled minimum action frequency."""
    total_regret: Estimate
    """Of all K episodes."""
    early_regret: Estimate
    """Per episode, over the first quarter of the episodes."""
    late_regret: Estimate
    """Per episode, over the last quarter: below the early one where regret grows less than linearly."""
    lost_turns: float
    """Share of the steps whose action was none of the world's."""
    calls: float
    """Requests to language models, per trial."""
    tokens: float
    """Read and written by them, per trial; a lower bound where `unreported` is above 0."""
    unreported: float
    """Requests per trial of which no usage was reported."""


@dataclass(frozen=True)
class Difference:
    """The difference of two explorers' total regrets, a - b, over the hidden instances that both have played."""

    a: str
    b: str
    total_regret: Paired


@dataclass(frozen=True)
class ExplorationResults:
    """What `exploration.json` holds."""

    settings: Mapping[str, Any]
    """What all trials share."""
    command: str
    explorers: tuple[ExplorerResult, ...]
    differences: tuple[Difference, ...]
    """Every other explorer less the first."""

    def save(self, path: str | Path) -> Path:
        """Write JSON."""
        written = Path(path)
        values = {"version": VERSION, **_plain(asdict(self))}
        replace_file(written, json.dumps(values, indent=1, allow_nan=False) + "\n")
        return written


def summarise(
    trials: Sequence[Trial], explorers: Sequence[Explorer], settings: Mapping[str, Any], *, command: str = ""
) -> ExplorationResults:
    """Curves, scores and paired differences of an exploration's trials.

    Raises:
        ConfigurationError: an explorer without a trial.
    """
    by_name = {one.name: [trial for trial in trials if trial.agent == one.name] for one in explorers}
    explored = tuple(_explored(one, by_name[one.name]) for one in explorers)
    first, *others = by_name
    # Of a single instance no interval could be given.
    compared = [name for name in others if len(_totals(by_name[name]).keys() & _totals(by_name[first]).keys()) > 1]
    differences = tuple(
        Difference(name, first, paired(_totals(by_name[name]), _totals(by_name[first]))) for name in compared
    )
    return ExplorationResults(dict(settings), command, explored, differences)


def table(results: ExplorationResults, title: str = "") -> Table:
    """The scores, for the terminal."""
    drawn = Table(
        title=title, title_justify="left", caption=_caption(results), caption_justify="left", box=box.SIMPLE_HEAD,
        show_edge=False, pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    drawn.add_column("agent", no_wrap=True)
    for heading in _headings(results):
        drawn.add_column(heading, justify="right", min_width=7)
    for one in results.explorers:
        drawn.add_row(one.name, *_cells(one, results))
    return drawn


def markdown(results: ExplorationResults) -> str:
    """The scores and the paired differences."""
    headings = _headings(results)
    lines = [f"    {results.command}\n"] if results.command else []
    rows = [[one.name, *_cells(one, results)] for one in results.explorers]
    lines.append(markdown_table(["agent", *headings], rows, "l" + "r" * len(headings)))
    if results.differences:
        paired = [
            [f"{one.a} - {one.b}", f"{regret.difference:+.3f}", f"{regret.low:+.3f} to {regret.high:+.3f}"]
            for one in results.differences
            for regret in [one.total_regret]
        ]
        headings = ["paired over instances", "difference in total regret", "95% interval"]
        lines += ["", markdown_table(headings, paired, "lrr")]
    return "\n".join([*lines, "", _caption(results), ""])


def _explored(explorer: Explorer, trials: Sequence[Trial]) -> ExplorerResult:
    per_episode = regrets(trials)
    frequencies = [minimum_frequencies(trial.choices, trial.n_actions) for trial in trials]
    quarter = max(1, per_episode.shape[-1] // 4)
    return ExplorerResult(
        name=explorer.name,
        agent=explorer.agent,
        temperature=explorer.temperature,
        n_trials=len(trials),
        episode_regret=curve(per_episode),
        cumulative_regret=curve(np.cumsum(per_episode, axis=-1)),
        suffix_failure=curve(suffix_failures(per_episode)),
        minimum_frequency=curve(np.array(frequencies)),
        total_regret=estimate(_totals(trials)),
        early_regret=_estimated(trials, per_episode[:, :quarter]),
        late_regret=_estimated(trials, per_episode[:, -quarter:]),
        lost_turns=float(np.mean([lost_turns(trial) for trial in trials])),
        calls=float(np.mean([trial.usage.calls for trial in trials])),
        tokens=float(np.mean([trial.usage.tokens for trial in trials])),
        unreported=float(np.mean([trial.usage.missing for trial in trials])),
    )


def _totals(trials: Sequence[Trial]) -> dict[tuple[str, int], float]:
    return {(trial.task, trial.seed): sum(trial.regrets) for trial in trials}


def _estimated(trials: Sequence[Trial], per_episode: FloatArray) -> Estimate:
    means = per_episode.mean(axis=1).tolist()
    return estimate({(trial.task, trial.seed): mean for trial, mean in zip(trials, means, strict=True)})


def _headings(results: ExplorationResults) -> list[str]:
    n_episodes = results.settings["n_episodes"]
    quarter, half = max(1, n_episodes // 4), n_episodes // 2 + 1
    lost = ["lost turns"] if _some_lost(results) else []
    asked = ["calls per trial", "tokens per trial"] if _some_asked(results) else []
    return [
        f"regret after {n_episodes} episodes",
        f"per episode, first {quarter}",
        f"per episode, last {quarter}",
        f"suffix failures at {half}",
        f"min. action frequency at {n_episodes}",
        *lost,
        *asked,
    ]


def _cells(one: ExplorerResult, results: ExplorationResults) -> list[str]:
    half = results.settings["n_episodes"] // 2
    lost = [f"{one.lost_turns:.3f}"] if _some_lost(results) else []
    asked = [f"{one.calls:.0f}", f"{one.tokens:.0f}"] if _some_asked(results) else []
    return [
        *(_cell(score.mean, score.standard_error) for score in (one.total_regret, one.early_regret, one.late_regret)),
        f"{one.suffix_failure.mean[half]:.3f}",
        f"{one.minimum_frequency.mean[-1]:.3f}",
        *lost,
        *asked,
    ]


def _some_lost(results: ExplorationResults) -> bool:
    return any(one.lost_turns > 0 for one in results.explorers)


def _some_asked(results: ExplorationResults) -> bool:
    return any(one.calls > 0 for one in results.explorers)


def _cell(mean: float, standard_error: float | None) -> str:
    return f"{mean:.3f}" if standard_error is None else f"{mean:.3f} ± {standard_error:.3f}"


def _caption(results: ExplorationResults) -> str:
    counts = sorted({one.n_trials for one in results.explorers})
    told = " to ".join(str(count) for count in counts[:: max(1, len(counts) - 1)])
    return (
        f"World {results.settings['world']}, {told} trial(s), each with a hidden instance of its own; mean ± standard "
        "error over trials. Regret is what the actions lose in expectation, not what luck lost."
    )


def _plain(value: Any) -> Any:
    """Named tuples as objects, which `json` would write as lists."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
