"""Distil a search into its policy: imitate AMC's particles, or Best-of-N's tries, and measure single runs.

    python reproduce/distill/distil.py collect amc best-of                  # training tasks; resumes
    python reproduce/distill/distil.py train amc best-of
    python reproduce/distill/distil.py play before amc-1 best-of-1          # training tasks, then test tasks; resumes
    python reproduce/distill/distil.py collect amc best-of --round 2        # with the policies of round 1; and so on
    python reproduce/distill/report.py                                      # the tables of docs/results/distill

In `crafting-stock`, with rewards. Both populations are weighted by exp(R / beta), AMC's also by its weights. Tasks
without a success are left out, as they teach nothing. Files are kept in runs/distill.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.critics.spec import parse_critic
from amc_agents.critics.value.local import EmbeddedCritic
from amc_agents.envs.registry import world
from amc_agents.types import FloatArray, Task
from reproduce.beyond.filtering import filtered, independent
from reproduce.beyond.play import Policy
from reproduce.distill.fine_tuning import fine_tuned
from reproduce.distill.imitated import shares
from reproduce.dose.doses import N, Setting
from reproduce.dose.draws import Forest, Node
from reproduce.dose.judges import ValueModel
from reproduce.dose.lockstep import Seat, Together

WORLD = "crafting-stock"
RUNS = Path("runs/distill")
AMC, BEST_OF, BEFORE = "amc", "best-of", "before"
ARMS = (AMC, BEST_OF)
SETTING, TRIES_AT = Setting((0.8,), 4, 0.1), 0.7
"""As tuned in docs/results/worlds."""
COLLECTED = {1: (330_000, 360), 2: (331_000, 180)}
"""First training task of each round, and number of tasks."""
PLAYED = {"train": (332_000, 40, 4), "test": (300, 300, 4)}
"""First task, number of tasks, and runs at each temperature."""
HEATS = (0.0, 0.3, 0.5, 0.7)
"""Temperatures of a plain run. At 0, the policy is run once."""
POOL = 8
"""Runs of the policy before, at `TRIES_AT`, of which Best-of-5 is the expectation."""


def policy_of(name: str) -> Policy:
    """Return the shipped policy ("before"), or the fine-tuned one of an arm and round ("amc-1")."""
    folder = str(world(WORLD).model) if name == BEFORE else str(RUNS / name)
    return Policy(folder, 200_000)


def collect(arm: str, number: int) -> None:
    """Play a search on training tasks, and store what is imitated of it."""
    path, (first, n_tasks) = RUNS / f"collected-{arm}-{number}.jsonl", COLLECTED[number]
    known = {line["task"] for line in read(path)}
    policy, critic = policy_of(BEFORE if number == 1 else f"{arm}-{number - 1}"), parse_critic("embedded:workshop")
    assert isinstance(critic, EmbeddedCritic)
    for task in world(WORLD).tasks(n_tasks, "train", first):
        if task.id not in known:
            append(path, asyncio.run(_collected(arm, task, policy, critic)))


async def _collected(arm: str, task: Task, policy: Policy, critic: EmbeddedCritic) -> dict[str, Any]:
    together = Together(Forest(policy, task, world(WORLD).make, 0))
    heats = SETTING.temperatures if arm == AMC else (TRIES_AT,)
    seat = Seat(together, ValueModel(critic), heats, hide_rewards=False)
    rng = np.random.default_rng([0, zlib.crc32(task.id.encode())])
    if arm == AMC:
        search = filtered(seat, N, SETTING.points, SETTING.beta, rng)
    else:
        search = independent(seat, N, SETTING.beta)
    (found,) = await together.run([search])
    returns = [state.node.trajectory.return_ for state in found.states]
    imitated = shares([state.node.dialogue for state in found.states], found.log_weights)
    line = {"task": task.id, "arm": arm, "success": max(returns) > 0, "mean": float(np.mean(returns))}
    spent = {"calls": seat.policy_calls, "policy_tokens": seat.policy_tokens, "critic_tokens": seat.critic_tokens}
    return line | spent | {"imitated": [[list(tokens), share] for tokens, share in imitated.items()]}


def affordable(arm: str, number: int) -> list[dict[str, Any]]:
    """Return the tasks that an arm learns from: the first ones, with as many policy calls as the thriftiest arm."""
    spent = {each: read(RUNS / f"collected-{each}-{number}.jsonl") for each in ARMS}
    calls = min(sum(line["calls"] for line in lines) for lines in spent.values())
    total = np.cumsum([line["calls"] for line in spent[arm]])
    return [line for line, sum_ in zip(spent[arm], total.tolist(), strict=True) if sum_ <= calls]


def train(arm: str, number: int) -> None:
    """Fine-tune the whole policy on what an arm imitates."""
    tasks = [
        [(tokens, share) for tokens, share in line["imitated"]] for line in affordable(arm, number) if line["success"]
    ]
    base = str(world(WORLD).model) if number == 1 else str(RUNS / f"{arm}-{number - 1}")
    log = fine_tuned(base, tasks, RUNS / f"{arm}-{number}")
    print(json.dumps({"arm": arm, "round": number, **log}), flush=True)


def play(name: str) -> None:
    """Play plain runs of a policy: all temperatures on training tasks, then the best one and 0 on test tasks."""
    policy = policy_of(name)
    _play(name, policy, "train", dict.fromkeys(HEATS, PLAYED["train"][2]))
    heats = {0.0: 1, chosen(name): PLAYED["test"][2]}
    if name == BEFORE:
        heats[TRIES_AT] = POOL
    _play(name, policy, "test", heats)


def _play(name: str, policy: Policy, split: str, heats: dict[float, int]) -> None:
    path, (first, n_tasks, _) = RUNS / f"{split}-{name}.jsonl", PLAYED[split]
    known = {line["task"] for line in read(path)}
    for task in world(WORLD).tasks(n_tasks, split, first):
        if task.id not in known:
            append(path, asyncio.run(_played(task, policy, heats)))


async def _played(task: Task, policy: Policy, heats: dict[float, int]) -> dict[str, Any]:
    together = Together(Forest(policy, task, world(WORLD).make, 0))
    seats = [Seat(together, _Silent(), (heat,), hide_rewards=False) for heat in heats]
    runs = [independent(seat, n if heat else 1, 1.0) for seat, (heat, n) in zip(seats, heats.items(), strict=True)]
    found = await together.run(runs)
    returns = [[state.node.trajectory.return_ for state in each.states] for each in found]
    return {"task": task.id, **{f"{heat:g}": each for heat, each in zip(heats, returns, strict=True)}}


class _Silent:
    async def values(self, nodes: Sequence[Node]) -> FloatArray:
        return np.zeros(len(nodes))


def chosen(name: str) -> float:
    """Return the temperature above 0 at which a policy's plain run scores best on training tasks."""
    lines = read(RUNS / f"train-{name}.jsonl")
    return max(HEATS[1:], key=lambda heat: float(np.mean([line[f"{heat:g}"] for line in lines])))


def read(path: Path) -> list[dict[str, Any]]:
    """Read stored lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def append(path: Path, line: dict[str, Any]) -> None:
    """Store a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def main() -> None:
    """Collect, train or play."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["collect", "train", "play"])
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--round", type=int, default=1)
    options = parser.parse_args()
    for name in options.names:
        if options.command == "play":
            play(name)
        else:
            {"collect": collect, "train": train}[options.command](name, options.round)


if __name__ == "__main__":
    main()
