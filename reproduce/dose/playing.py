"""Play the missing runs and pools of tasks, and append each task's results to a file."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.bench.records import Particles
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.value.local import EmbeddedCritic
from amc_agents.training.metrics import auc
from amc_agents.types import FloatArray, Task
from reproduce.beyond.filtering import filtered, independent
from reproduce.beyond.found import Found
from reproduce.beyond.play import Policy
from reproduce.dose.doses import HIDDEN, LEVELS, MODELS, POLICIES, POOL, ROLLOUTS, N, Setting, world_of
from reproduce.dose.draws import Forest, Node
from reproduce.dose.judges import Rollouts, ValueModel
from reproduce.dose.lockstep import Judge, Particle, Seat, Together
from reproduce.dose.noise import NoisyPlanner

RUNS = Path("runs/dose")
N_ROLLOUTS = 8
_CACHE = 200_000
Run = tuple[str, Setting]
"""A critic's name, and a setting."""


def file_of(name: str, group: str, seed: int) -> Path:
    """The file of a world's results."""
    return RUNS / f"{name}-{group}-seed{seed}.jsonl"


def read(path: Path) -> list[dict[str, Any]]:
    """Read the results so far; a line that was cut off is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def play(
    name: str,
    group: str,
    seed: int,
    tasks: Sequence[Task],
    runs: Sequence[Run],
    pools: Mapping[float, Sequence[str]],
    ranked: Sequence[str] = (),
    n_tries: int = POOL,
) -> list[dict[str, Any]]:
    """Play the runs and pools that a world's file lacks, and return everything in it.

    Args:
        name: the world.
        group: of tasks.
        seed: of draws, noise and resampling.
        tasks: the tasks.
        runs: critics and settings.
        pools: temperature -> the critics that judge the pool of independent tries.
        ranked: the critics whose AUC is measured on these pools.
        n_tries: size of a pool.
    """
    path = file_of(name, group, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {key_of(line) for line in read(path)}
    for task in tasks:
        left = [run for run in runs if (task.id, run[0], run[1].name) not in known]
        unread = {
            heat: [critic for critic in critics if (task.id, critic, f"pool_T{heat:g}") not in known]
            for heat, critics in pools.items()
        }
        lines = asyncio.run(_played(name, task, seed, left, unread, ranked, n_tries))
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
    return read(path)


def key_of(line: Mapping[str, Any]) -> tuple[str, str, str]:
    """Task, critic, setting."""
    return line["task"], line["critic"], line["setting"]


async def _played(
    name: str,
    task: Task,
    seed: int,
    runs: Sequence[Run],
    pools: Mapping[float, Sequence[str]],
    ranked: Sequence[str],
    n_tries: int,
) -> list[dict[str, Any]]:
    make, hidden = world_of(name).make, name in HIDDEN
    policy = _policy(POLICIES.get(name, str(world_of(name).model)))
    together = Together(Forest(policy, task, make, seed))
    other = Forest(policy, task, make, seed + 1_000_000)
    judges: dict[tuple[str, float], Judge] = {}

    def judge(critic: str, heat: float) -> Judge:
        place = critic, heat if critic == ROLLOUTS else 0.0
        if place not in judges:
            judges[place] = judge_of(name, critic, heat, seed, other)
        return judges[place]

    searches = []
    for critic, setting in runs:
        seat = Seat(together, judge(critic, setting.temperatures[0]), setting.temperatures, hidden)
        searches.append(_run(task, seed, (critic, setting), seat))
    for heat, critics in pools.items():
        if critics:
            seat = Seat(together, _Silent(), (heat,), hidden)
            of_heat = {critic: judge(critic, heat) for critic in critics}
            searches.append(_pool(task, heat, of_heat, seat, ranked, n_tries))
    return [line for lines in await together.run(searches) for line in lines]


def judge_of(name: str, critic: str, heat: float, seed: int, other: Forest) -> Judge:
    """Create a critic for a task."""
    if critic == ROLLOUTS:
        return Rollouts(other, heat, N_ROLLOUTS)
    if (name, critic) in MODELS:
        return ValueModel(_model(MODELS[name, critic]))
    return NoisyPlanner(next(level for level in LEVELS if level.name == critic), seed)


async def _run(task: Task, seed: int, run: Run, seat: Seat) -> list[dict[str, Any]]:
    critic, setting = run
    rng = np.random.default_rng([seed, *(zlib.crc32(text.encode()) for text in (task.id, critic, setting.name))])
    found: Found[Particle] = await filtered(seat, N, setting.points, setting.beta, rng)
    returns = [state.node.trajectory.return_ for state in found.states]
    return [
        {
            "task": task.id, "critic": critic, "setting": setting.name,
            "deployable": returns[int(np.argmax(found.values))], "oracle": max(returns),
            "mean": float(np.mean(returns)), "calls": seat.policy_calls,
            "policy_tokens": seat.policy_tokens, "critic_tokens": seat.critic_tokens,
        }
    ]  # fmt: skip


async def _pool(
    task: Task, heat: float, judges: Mapping[str, Judge], seat: Seat, ranked: Sequence[str], n_tries: int
) -> list[dict[str, Any]]:
    """Judge independent tries: their final values, and how each step's values rank them."""
    nodes = [state.node for state in (await independent(seat, n_tries, 1.0)).states]
    returns = [node.trajectory.return_ for node in nodes]
    seat.critic_tokens, seat.judged = 0, set()
    for node in nodes:
        seat.charge_critic(node)
    lines = []
    for critic, judge in judges.items():
        lines.append(
            {
                "task": task.id, "critic": critic, "setting": f"pool_T{heat:g}", "returns": returns,
                "values": [round(value, 5) for value in (await judge.values(nodes)).tolist()],
                "auc": await areas(nodes, judge) if critic in ranked else {}, "calls": seat.policy_calls,
                "policy_tokens": seat.policy_tokens, "critic_tokens": seat.critic_tokens,
            }
        )  # fmt: skip
    return lines


async def areas(nodes: Sequence[Node], judge: Judge) -> dict[int, float]:
    """Step -> AUC of the values of unfinished states after it against the outcome, among a task's tries."""
    paths = [list(past(node)) for node in nodes]
    found = {}
    for step in range(1, max(map(len, paths))):
        here = [path for path in paths if len(path) > step + 1]
        success = np.array([path[-1].trajectory.return_ > 0 for path in here])
        if success.any() and not success.all():
            area = auc(await judge.values([path[step] for path in here]), success)
            if area is not None:
                found[step] = round(area, 4)
    return found


def past(node: Node) -> Iterable[Node]:
    """The states up to a node, the first one first."""
    if node.parent is not None:
        yield from past(node.parent)
    yield node


class _Silent:
    """Judges nothing: a pool's critics read its tries later."""

    async def values(self, nodes: Sequence[Node]) -> FloatArray:
        """`[N]` zeros."""
        return np.zeros(len(nodes))


@lru_cache
def _policy(name: str) -> Policy:
    return Policy(name, _CACHE)


@lru_cache
def _model(spec: str) -> EmbeddedCritic:
    critic = parse_critic(spec)
    assert isinstance(critic, EmbeddedCritic)
    return critic


def read_particles(line: Mapping[str, Any]) -> Particles:
    """Return a pool's tries as a critic judges them."""
    return Particles(tuple(line["returns"]), tuple(line["values"]), tuple(range(len(line["returns"]))))
