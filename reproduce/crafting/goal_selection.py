"""Does the goal critic make the embedded policy succeed more often, by choosing among its thoughts?

    python reproduce/crafting/goal_selection.py --critic OUT/proposed [--tasks 200] [--first 2000] [--seeds 0]

The embedded policy cannot read a critique, so this is PNLC without refinement: K thoughts are sampled, and the thought
with the best goals is chosen. Goals come from the recipe book (`goal_judges.RecipeGoals`), not from a model. Methods
that sample see the same K turns at the same state, because the seed depends only on task, seed and step. Nothing is
tuned here. RAW keeps every attempt, so that an interrupted run resumes. The results are written to
`docs/results/pnlc/selection.json`; intervals are paired over tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.messages import AIMessage, HumanMessage

from amc_agents.bench.statistics import Measured, estimate, paired
from amc_agents.critics.goal.critic import GoalValueCritic, as_summary
from amc_agents.critics.goal.embeddings import as_embeddings
from amc_agents.critics.render import turn
from amc_agents.decisions import Sample
from amc_agents.envs.crafting import CraftingWorld, generate_tasks
from amc_agents.lac import decision as lac
from amc_agents.lac.types import LacSettings
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.pnlc import decision as pnlc
from amc_agents.pnlc.types import PnlcSettings
from amc_agents.runtime.inner_calls import ChatActor
from amc_agents.types import FloatArray, Step, Task, Trajectory
from reproduce.crafting.goal_judges import RecipeGoals, similarity
from reproduce.crafting.measure_verdict import Planner

HORIZON = 20
GREEDY, SAMPLED, VOTE, PNLC, NEAR, PLANNER = "greedy", "sampled", "vote", "pnlc", "pnlc-similarity", "planner"
ALL = (GREEDY, SAMPLED, VOTE, PNLC, NEAR, PLANNER)

Decide = Callable[[Trajectory, ChatActor], Awaitable[Any]]
"""(state, policy at the state) -> a decision with a `sample`."""


class Similarity:
    """An untrained goal critic: the similarity of state, thought and goal."""

    async def reach(self, trajectory: Trajectory, thought: str, goals: Sequence[str]) -> FloatArray:
        """`[G]` mean cosine of the goal with state and thought, clipped to [0, 1]."""
        model = as_embeddings("hashed:512")
        (state,) = (await as_summary("none").describe([trajectory])).states
        vectors = (await model.embed([state, thought, *goals])).vectors
        near = [similarity(np.tile(vector, (len(goals), 1)), vectors[2:]) for vector in vectors[:2]]
        likely: FloatArray = np.clip(np.mean(near, axis=0), 0.0, 1.0)
        return likely


@dataclass(frozen=True)
class Attempt:
    """The outcome of a task."""

    task: str
    seed: int
    success: bool
    steps: int
    tokens: int
    """Tokens that the policy wrote."""
    round_trips: int
    seconds: float


def decide_by(name: str, critic: Path, k: int) -> Decide:
    """Return the decision function of a method."""
    if name in (PNLC, NEAR):
        judge = GoalValueCritic(critic) if name == PNLC else Similarity()
        best_of = PnlcSettings(refine=False, k=k)
        return lambda state, actor: pnlc.decide(state, actor, RecipeGoals(), judge, best_of)
    if name == PLANNER:
        return lambda state, actor: lac.decide(state, actor, Planner(), LacSettings(k=k))
    settings = LacSettings(k=k if name == VOTE else 1, use_critic=False)
    return lambda state, actor: lac.decide(state, actor, None, settings)


async def attempt(task: Task, name: str, decide: Decide, temperature: float, seed: int) -> Attempt:
    """Play a task with a method."""
    start = time.perf_counter()
    world = CraftingWorld()
    await world.reset(task)
    trajectory, tokens, trips = Trajectory(task), 0, 0
    messages: list[Any] = [HumanMessage(task.instruction)]
    for number in range(HORIZON):
        step_seed = int(np.random.SeedSequence([seed, number, zlib.crc32(task.id.encode())]).generate_state(1)[0])
        actor = ChatActor(
            EmbeddedChatModel(temperature=0.0 if name == GREEDY else temperature, seed=step_seed), messages
        )
        decision = await decide(trajectory, actor)
        chosen: Sample = decision.sample
        tokens, trips = tokens + actor.usage.output_tokens, trips + decision.round_trips
        answer = await world.step(chosen.action)
        step = Step(chosen.action, answer.observation, chosen.thought, answer.reward)
        trajectory = trajectory.extended(step, done=answer.done)
        messages = [*messages, AIMessage(turn(step)), HumanMessage(answer.observation)]
        if answer.done:
            break
    n = len(trajectory.steps)
    return Attempt(task.id, seed, trajectory.return_ > 0, n, tokens, trips, time.perf_counter() - start)


async def run(tasks: Sequence[Task], name: str, decide: Decide, options: argparse.Namespace) -> list[Attempt]:
    """Play all tasks with a method, except for attempts that RAW contains."""
    file: Path = options.raw / f"{name}.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    known_attempts = {(known.task, known.seed): known for known in (Attempt(**json.loads(line)) for line in lines)}
    limit = asyncio.Semaphore(50)

    async def attempt_once(task: Task, seed: int) -> Attempt:
        if (task.id, seed) in known_attempts:
            return known_attempts[task.id, seed]
        async with limit:
            new = await attempt(task, name, decide, options.temperature, seed)
        with file.open("a") as out:
            out.write(json.dumps(asdict(new)) + "\n")
        return new

    return list(await asyncio.gather(*(attempt_once(task, seed) for task in tasks for seed in options.seeds)))


def scores(attempts: Sequence[Attempt]) -> Measured:
    """Return the success by task and seed."""
    return {(each.task, each.seed): float(each.success) for each in attempts}


def main() -> None:
    """Play, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--critic", type=Path, required=True, help="folder of a goal critic")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--first", type=int, default=2000, help="number of the first test task")
    parser.add_argument("--band", type=int, nargs=2, default=[9, 14], metavar=("LOW", "HIGH"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--methods", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--raw", type=Path, default=Path("runs/pnlc-selection"))
    parser.add_argument("--results", type=Path, default=Path("docs/results/pnlc/selection.json"))
    options = parser.parse_args()
    options.raw.mkdir(parents=True, exist_ok=True)
    low, high = options.band
    tasks = list(generate_tasks(options.tasks, "test", first_seed=options.first, optimal_steps=(low, high)))
    attempts_of: dict[str, list[Attempt]] = {}
    for name in options.methods:
        attempts_of[name] = asyncio.run(run(tasks, name, decide_by(name, options.critic, options.k), options))
        print(name, estimate(scores(attempts_of[name])), flush=True)
    results: dict[str, Any] = {"command": " ".join(["python", *sys.argv]), "split": "test", "first": options.first}
    results |= {"band": options.band, "k": options.k, "temperature": options.temperature, "horizon": HORIZON}
    results["methods"] = {name: _figures(attempts) for name, attempts in attempts_of.items()}
    results["paired"] = [
        {"a": a, "b": b, "metric": "success", **paired(scores(attempts_of[a]), scores(attempts_of[b]))._asdict()}
        for a in (PNLC, NEAR, PLANNER)
        for b in (SAMPLED, GREEDY, VOTE, *([NEAR] if a == PNLC else []))
        if a in attempts_of and b in attempts_of
    ]
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results["paired"], indent=1))


def _figures(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return the success rate and the mean cost of a decision."""
    steps = sum(attempt.steps for attempt in attempts)
    return {
        "success": estimate(scores(attempts))._asdict(),
        "tokens_per_decision": sum(attempt.tokens for attempt in attempts) / steps,
        "round_trips_per_decision": sum(attempt.round_trips for attempt in attempts) / steps,
        "steps": steps / len(attempts),
    }


if __name__ == "__main__":
    main()
