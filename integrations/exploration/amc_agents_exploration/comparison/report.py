"""The results of an exploration: curves and scores of each explorer, as JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.bench.report_tables import score_text
from amc_agents.bench.statistics import Estimate, Paired, estimate, paired
from amc_agents.files import replace_file
from amc_agents.markdown import table
from amc_agents.types import FloatArray
from amc_agents_exploration.comparison.agents import Explorer
from amc_agents_exploration.comparison.measures import (
    Curve,
    curve,
    lost_turns,
    minimum_frequencies,
    regrets,
    suffix_failures,
)
from amc_agents_exploration.comparison.trials import Trial

VERSION = 1


@dataclass(frozen=True)
class ExplorerResult:
    """The results of one explorer over `K` episodes."""

    name: str
    agent: str
    temperature: float | None
    n_trials: int
    episode_regret: Curve
    """`[K]` regret of each episode."""
    cumulative_regret: Curve
    """`[K]` sum of the regrets up to an episode."""
    suffix_failure: Curve
    """`[K]` frequency; see `amc_agents_exploration.comparison.measures`."""
    minimum_frequency: Curve
    """`[K]` scaled minimum action frequency."""
    total_regret: Estimate
    """Sum over all K episodes."""
    early_regret: Estimate
    """Mean per episode over the first quarter of the episodes."""
    late_regret: Estimate
    """Mean per episode over the last quarter: below `early_regret` if regret grows less than linearly."""
    lost_turns: float
    """Share of steps whose action the world does not know."""
    calls: float
    """Requests to language models per trial."""
    tokens: float
    """Tokens read and written by language models per trial; a lower bound if `unreported` is above 0."""
    unreported: float
    """Requests per trial without reported usage."""


@dataclass(frozen=True)
class Difference:
    """The difference a - b of two explorers' total regrets over the hidden instances that both have played."""

    a: str
    b: str
    total_regret: Paired


@dataclass(frozen=True)
class ExplorationResults:
    """The content of `exploration.json`."""

    settings: Mapping[str, Any]
    """Settings that all trials share."""
    command: str
    explorers: tuple[ExplorerResult, ...]
    differences: tuple[Difference, ...]
    """Every other explorer minus the first."""

    def save(self, path: str | Path) -> Path:
        """Write the results as JSON."""
        path = Path(path)
        values = {"version": VERSION, **_plain(asdict(self))}
        replace_file(path, json.dumps(values, indent=1, allow_nan=False) + "\n")
        return path


def summarise(
    trials: Sequence[Trial], explorers: Sequence[Explorer], settings: Mapping[str, Any], *, command: str = ""
) -> ExplorationResults:
    """Compute the curves, scores and paired differences of an exploration's trials.

    Raises:
        ConfigurationError: an explorer has no trial.
    """
    by_name = {explorer.name: [trial for trial in trials if trial.agent == explorer.name] for explorer in explorers}
    results = tuple(_explorer_result(explorer, by_name[explorer.name]) for explorer in explorers)
    first, *others = by_name
    # A single common instance has no interval.
    paired_names = [name for name in others if len(_totals(by_name[name]).keys() & _totals(by_name[first]).keys()) > 1]
    differences = tuple(
        Difference(name, first, paired(_totals(by_name[name]), _totals(by_name[first]))) for name in paired_names
    )
    return ExplorationResults(dict(settings), command, results, differences)


def markdown(results: ExplorationResults) -> str:
    """Format the scores and the paired differences as Markdown."""
    columns = headings(results)
    lines = [f"    {results.command}\n"] if results.command else []
    rows = [[explorer.name, *cells(explorer, results)] for explorer in results.explorers]
    lines.append(table(["agent", *columns], rows, "l" + "r" * len(columns)))
    if results.differences:
        pairs = [
            [f"{pair.a} - {pair.b}", f"{regret.difference:+.3f}", f"{regret.low:+.3f} to {regret.high:+.3f}"]
            for pair in results.differences
            for regret in (pair.total_regret,)
        ]
        lines += ["", table(["paired over instances", "difference in total regret", "95% interval"], pairs, "lrr")]
    return "\n".join([*lines, "", caption(results), ""])


def headings(results: ExplorationResults) -> list[str]:
    """Return the headings of the score columns."""
    n_episodes = results.settings["n_episodes"]
    quarter, half = max(1, n_episodes // 4), n_episodes // 2 + 1
    return [
        f"regret after {n_episodes} episodes",
        f"per episode, first {quarter}",
        f"per episode, last {quarter}",
        f"suffix failures at {half}",
        f"min. action frequency at {n_episodes}",
        *(["lost turns"] if _has_lost_turns(results) else []),
        *(["calls per trial", "tokens per trial"] if _has_calls(results) else []),
    ]


def cells(explorer: ExplorerResult, results: ExplorationResults) -> list[str]:
    """Return the score columns of an explorer."""
    half = results.settings["n_episodes"] // 2
    return [
        *(score_text(regret) for regret in (explorer.total_regret, explorer.early_regret, explorer.late_regret)),
        f"{explorer.suffix_failure.mean[half]:.3f}",
        f"{explorer.minimum_frequency.mean[-1]:.3f}",
        *([f"{explorer.lost_turns:.3f}"] if _has_lost_turns(results) else []),
        *([f"{explorer.calls:.0f}", f"{explorer.tokens:.0f}"] if _has_calls(results) else []),
    ]


def caption(results: ExplorationResults) -> str:
    """Describe the world, the number of trials and the scores."""
    counts = sorted({explorer.n_trials for explorer in results.explorers})
    trials = " to ".join(str(count) for count in counts[:: max(1, len(counts) - 1)])
    return (
        f"World {results.settings['world']}, {trials} trial(s), each with its own hidden instance; mean ± standard "
        "error over trials. Regret is the expected loss of the actions, so it excludes the randomness of rewards."
    )


def _explorer_result(explorer: Explorer, trials: Sequence[Trial]) -> ExplorerResult:
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
        early_regret=_mean_regret(trials, per_episode[:, :quarter]),
        late_regret=_mean_regret(trials, per_episode[:, -quarter:]),
        lost_turns=float(np.mean([lost_turns(trial) for trial in trials])),
        calls=float(np.mean([trial.usage.calls for trial in trials])),
        tokens=float(np.mean([trial.usage.tokens for trial in trials])),
        unreported=float(np.mean([trial.usage.missing for trial in trials])),
    )


def _totals(trials: Sequence[Trial]) -> dict[tuple[str, int], float]:
    return {(trial.task, trial.seed): sum(trial.regrets) for trial in trials}


def _mean_regret(trials: Sequence[Trial], per_episode: FloatArray) -> Estimate:
    means = per_episode.mean(axis=1).tolist()
    return estimate({(trial.task, trial.seed): mean for trial, mean in zip(trials, means, strict=True)})


def _has_lost_turns(results: ExplorationResults) -> bool:
    return any(explorer.lost_turns > 0 for explorer in results.explorers)


def _has_calls(results: ExplorationResults) -> bool:
    return any(explorer.calls > 0 for explorer in results.explorers)


def _plain(value: Any) -> Any:
    """Turn named tuples into dictionaries; `json` would write them as lists."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
