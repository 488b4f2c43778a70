"""Simulate deployments of a canary, drawn from the bank of runs, and count how often its claims hold.

    python reproduce/rollout/deployments.py [--deployments 300] [--out docs/results/rollout/deployments.json]

A deployment has users who return: each has a band of difficulty and one to four calls, and a call draws a task of the
band and an answer of the user's arm from the bank. A fifth of the outcomes never arrives. Because every answer is drawn
uniformly, the true lift is known exactly. The comparison is read after every single user.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.files import replace_file
from amc_agents.operations.rollout.canary_comparison import Design, complete_units
from amc_agents.operations.rollout.confidence import lift_sequence
from amc_agents.types import FloatArray

BANK = Path(__file__).with_name("bank.jsonl")
DESIGN = Design(window=10.0)
MOST_CALLS, KNOWN = 4, 0.8


@dataclass(frozen=True)
class Scenario:
    """What is deployed, and to whom."""

    better: str
    """Arm of the bank that `better` serves."""
    easy: tuple[float, float] = (0.5, 0.5)
    """Share of easy users in the first and in the second half."""
    n_users: int = 3000
    share: float = 0.1


SCENARIOS = {
    "lift": Scenario("better"),
    "drift halfway": Scenario("better", easy=(0.9, 0.1)),
    "no lift": Scenario("plain"),
    "no lift, drift halfway": Scenario("plain", easy=(0.9, 0.1)),
    "harmful critic": Scenario("harmful"),
}


class Bank:
    """Outcomes of the bank: `outcomes[band][arm]` is `[tasks, runs]`."""

    def __init__(self, path: Path = BANK) -> None:
        runs: dict[str, dict[str, dict[str, list[float]]]] = {}
        for line in path.read_text().splitlines():
            band, task, arm, _, outcome, *_ = json.loads(line)["run"]
            runs.setdefault(band, {}).setdefault(arm, {}).setdefault(task, []).append(outcome)
        self.outcomes = {
            band: {arm: np.array(list(tasks.values())) for arm, tasks in arms.items()} for band, arms in runs.items()
        }

    def lift(self, scenario: Scenario, easy: float) -> float:
        """Return the expected difference for a user, where `easy` is the share of easy users."""
        differences = {
            band: arms[scenario.better].mean() - arms["plain"].mean() for band, arms in self.outcomes.items()
        }
        return float(easy * differences["easy"] + (1 - easy) * differences["hard"])

    def draw(self, rng: np.random.Generator, band: str, arm: str) -> float:
        """Draw an answer's outcome."""
        outcomes = self.outcomes[band][arm]
        return float(outcomes[rng.integers(outcomes.shape[0]), rng.integers(outcomes.shape[1])])


def deploy(
    bank: Bank, scenario: Scenario, rng: np.random.Generator
) -> tuple[list[dict[str, Any]], dict[str, float], FloatArray]:
    """Play a deployment.

    Returns:
        The calls in the order of their start, the outcomes that arrived, and `[n]` the expected lift of each user.
    """
    calls, outcomes = [], {}
    lifts = np.zeros(scenario.n_users)
    for user in range(scenario.n_users):
        easy = scenario.easy[2 * user >= scenario.n_users]
        lifts[user] = bank.lift(scenario, easy)
        band = "easy" if rng.random() < easy else "hard"
        arm = "better" if rng.random() < scenario.share else "plain"
        for number in range(int(rng.integers(1, MOST_CALLS + 1))):
            name = f"{user}-{number}"
            calls.append({"id": name, "key": str(user), "started": user + 2.0 * number, "arm": arm, "served": arm,
                          "share": scenario.share})  # fmt: skip
            if rng.random() < KNOWN:
                outcomes[name] = bank.draw(rng, band, scenario.better if arm == "better" else "plain")
    return calls, outcomes, lifts


@dataclass(frozen=True)
class Deployment:
    """What a canary would have reported."""

    covered: bool
    """Whether the interval covered the running mean of the true lift after every user."""
    first: str
    """The first verdict other than "not yet"; "not yet" if there was none."""
    n_keys: int
    """Number of keys at that verdict, or of all."""


def examine(bank: Bank, scenario: Scenario, seed: int) -> Deployment:
    """Play a deployment, and read its comparison after every user."""
    calls, outcomes, lifts = deploy(bank, scenario, np.random.default_rng([seed, 21]))
    units = complete_units(calls, outcomes, DESIGN, now=float("inf"))
    counted = [unit for _, unit in units]
    sequence = lift_sequence(
        np.array([unit["arm"] == "better" for unit in counted]),
        np.array([unit["outcome"] for unit in counted]),
        np.array([unit["share"] for unit in counted]),
        DESIGN.alpha,
    )
    truth = np.cumsum([lifts[int(key)] for key, _ in units]) / np.arange(1, len(units) + 1)
    decided = (sequence.low > 0) | (sequence.high < 0)
    at = int(np.argmax(decided)) if decided.any() else len(units) - 1
    first = "not yet" if not decided.any() else "better" if sequence.low[at] > 0 else "worse"
    return Deployment(bool(np.all((sequence.low <= truth) & (truth <= sequence.high))), first, at + 1)


def summary(bank: Bank, scenario: Scenario, n_deployments: int) -> Mapping[str, Any]:
    """Examine deployments, and count."""
    results = [examine(bank, scenario, seed) for seed in range(n_deployments)]
    keys = [result.n_keys for result in results if result.first != "not yet"]
    return {
        **asdict(scenario),
        "true_lift": [bank.lift(scenario, easy) for easy in scenario.easy],
        "deployments": n_deployments,
        "covered": sum(result.covered for result in results),
        **{verdict: sum(result.first == verdict for result in results) for verdict in ("better", "worse", "not yet")},
        "keys_until_verdict": [float(each) for each in np.percentile(keys, [10, 50, 90])] if keys else None,
    }


def main() -> None:
    """Simulate all scenarios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deployments", type=int, default=300)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    bank, results = Bank(), {}
    for name, scenario in SCENARIOS.items():
        results[name] = summary(bank, scenario, options.deployments)
        print(name, json.dumps(results[name]), flush=True)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(options.out, json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
