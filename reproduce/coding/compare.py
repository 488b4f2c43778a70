"""AMC against Best-of-N at equal policy calls, on generated bugs, with the scripted policy of the coding world.

    PYTHONPATH=integrations/workspace python reproduce/coding/compare.py docs/results/workspace

Every method is tuned on 30 bugs of the split "train", and then run on 100 bugs of the split "test". An interrupted run
resumes. Writes `tuning.json`, `results.json` and the raw runs (`*.jsonl.gz`).
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from amc_agents_workspace import CodingWorld, Remembered, generate_bugs, scripted_policy

from amc_agents.bench.methods import Method
from amc_agents.bench.plain_agent import plain_text_agent
from amc_agents.bench.records import RunResult
from amc_agents.bench.runner import Comparison, compare
from amc_agents.bench.statistics import estimate, paired
from amc_agents.smc import AtSteps
from reproduce.study.subsampling import expected_top

P_FIX = 0.2
"""Chosen so that a run of the training bugs rarely succeeds."""
CALLS = 200
"""Policy calls per bug: the number of particles times the horizon."""
HORIZONS = (9, 13, 21, 33, 49)
INTERVALS = (2, 4, 8)
"""Steps between resamplings. An attempt takes two: an edit and a test run."""
BETAS = (0.03, 0.1, 0.3)
N_TRAIN, N_TEST = 30, 100
POOL = 1.5
"""Runs in the test pool of Best-of-N, relative to its N, so that its calls can be matched to AMC's."""
CRITIC = "amc_agents_workspace.critic:Progress"


@dataclass(frozen=True)
class Setting:
    """The tuned settings of a method."""

    horizon: int
    interval: int | None = None
    """None: Best-of-N, which never resamples."""
    beta: float = 0.1

    @property
    def n_particles(self) -> int:
        """As many as the calls allow."""
        return round(CALLS / self.horizon)

    @property
    def method(self) -> Method:
        """The method with this setting."""
        if self.interval is None:
            return Method(f"best-of-n-{self.horizon}", "Best-of-N")
        # A test run ends every odd step from the third on: the critic reads its report.
        schedule = AtSteps(*range(1 + self.interval, self.horizon, self.interval))
        name = f"amc-{self.horizon}-every-{self.interval}-beta-{self.beta}"
        return Method(name, "AMC", resample=schedule, beta=self.beta)


def run(setting: Setting, split: str, out: Path, *, pool: float = 1.0, tests: Remembered) -> list[RunResult]:
    """Run a setting on all bugs of a split."""
    comparison = Comparison(
        policy=lambda temperature: scripted_policy(P_FIX),
        agent=plain_text_agent,
        environment=lambda: CodingWorld(tests),
        tasks=list(generate_bugs(N_TRAIN if split == "train" else N_TEST, split)),
        methods=[setting.method],
        n_particles=round(pool * setting.n_particles),
        critic=CRITIC,
        horizon=setting.horizon,
        about={"world": "coding", "policy": "scripted", "p_fix": P_FIX, "split": split},
    )
    return asyncio.run(compare(comparison, out / f"{split}-{setting.method.name}", resume=True, n_concurrent=4))


def tune(out: Path, tests: Remembered) -> tuple[Setting, Setting, list[dict[str, Any]]]:
    """Return the best settings of AMC and of Best-of-N, and all that were tried: one value after the other."""
    tried: dict[Setting, float] = {}
    rows = []

    def best(settings: Sequence[Setting]) -> Setting:
        for setting in settings:
            if setting not in tried:
                results = run(setting, "train", out, tests=tests)
                tried[setting] = float(np.mean([result.scores.success for result in results]))
                row = {**asdict(setting), "n_particles": setting.n_particles, "success": tried[setting]}
                rows.append({**row, "calls": calls_of(results), "mean_particle": mean_particle(results)})
                print(rows[-1], flush=True)
        return max(settings, key=lambda setting: tried[setting])

    best_of_n = best([Setting(horizon) for horizon in HORIZONS])
    amc = best([Setting(horizon, INTERVALS[1]) for horizon in HORIZONS])
    amc = best([replace(amc, interval=interval) for interval in INTERVALS])
    return best([replace(amc, beta=beta) for beta in BETAS]), best_of_n, rows


def calls_of(results: Sequence[RunResult]) -> float:
    """Return the mean number of policy calls per bug."""
    return float(np.mean([result.cost.policy_calls for result in results]))


def mean_particle(results: Sequence[RunResult]) -> float:
    """Return the mean success of a particle."""
    return float(np.mean([result.scores.mean for result in results]))


def best_of(results: Sequence[RunResult], n: float) -> Mapping[tuple[str, int], float]:
    """Return the expected success of Best-of-N on each bug, from a pool of runs."""
    return {(result.task, result.seed): expected_top(_returns(result), n) for result in results}


def matched(amc: Sequence[RunResult], pool: Sequence[RunResult]) -> float:
    """Return the N at which Best-of-N makes as many policy calls as AMC, on average over the bugs."""
    per_run = np.mean([result.cost.policy_calls / len(_returns(result)) for result in pool])
    return calls_of(amc) / float(per_run)


def report(amc: Sequence[RunResult], pool: Sequence[RunResult]) -> dict[str, Any]:
    """Compare AMC with Best-of-N at the same number of policy calls."""
    n = matched(amc, pool)
    successes = {(result.task, result.seed): result.scores.success for result in amc}
    means = {(result.task, result.seed): result.scores.mean for result in amc}
    single = best_of(pool, 1)
    return {
        "policy_calls": calls_of(amc),
        "best_of_n_runs": n,
        "success": {"amc": estimate(successes)._asdict(), "best-of-n": estimate(best_of(pool, n))._asdict()},
        "difference": paired(successes, best_of(pool, n))._asdict(),
        "mean_particle": {"amc": estimate(means)._asdict(), "best-of-n": estimate(single)._asdict()},
        "mean_particle_difference": paired(means, single)._asdict(),
    }


def main() -> None:
    """Tune, run and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--runs", type=Path, help="folder of the raw runs; default: OUT/runs")
    options = parser.parse_args()
    out, runs = options.out, options.runs or options.out / "runs"
    out.mkdir(parents=True, exist_ok=True)
    tests = Remembered()
    amc, best_of_n, rows = tune(runs, tests)
    chosen = {"amc": asdict(amc), "best-of-n": asdict(best_of_n)}
    _write(out / "tuning.json", {"p_fix": P_FIX, "calls": CALLS, "bugs": N_TRAIN, "tried": rows, "chosen": chosen})
    results = run(amc, "test", runs, tests=tests), run(best_of_n, "test", runs, pool=POOL, tests=tests)
    for name, records in zip(("amc", "best-of-n"), results, strict=True):
        with gzip.open(out / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(_lines(records))
    _write(out / "results.json", {"p_fix": P_FIX, "bugs": N_TEST, **chosen, **report(*results)})


def _returns(result: RunResult) -> tuple[float, ...]:
    assert result.particles is not None
    return result.particles.returns


def _lines(records: Sequence[RunResult]) -> Iterator[str]:
    return (json.dumps(record.to_json()) + "\n" for record in records)


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
