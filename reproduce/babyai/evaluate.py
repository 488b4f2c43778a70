"""Measure the success rate of the small BabyAI policy: ReAct at several temperatures.

    python reproduce/babyai/evaluate.py [--model FOLDER] [--tasks 100] [--first 0] [--seeds 1] [--temperatures 1 0.7 0]

Prints the success rate with its standard error over tasks, the share of tasks that any seed solves, and the mean number
of steps.
"""

from __future__ import annotations

import argparse
import asyncio

import numpy as np
from amc_agents_minigrid import GO_TO, PICK_UP
from langchain_core.messages import BaseMessage, HumanMessage

from amc_agents.envs.registry import WorldSpec
from amc_agents.messages import turn_of
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.models.seeding import use_rng
from amc_agents.types import Task

WORLDS = {"babyai-go-to": GO_TO, "babyai-pick-up": PICK_UP}


async def play(model: EmbeddedChatModel, spec: WorldSpec, task: Task, seed: int) -> tuple[bool, int]:
    """Play an episode with its own random stream; return (solved, steps)."""
    world = spec.make()
    answer = await world.reset(task)
    messages: list[BaseMessage] = [HumanMessage(answer.observation)]
    steps = 0
    with use_rng(np.random.default_rng([seed, task.payload.seed])):
        while not answer.done:
            reply = await model.ainvoke(messages)
            answer = await world.step(turn_of(reply)[1])
            messages += [reply, HumanMessage(answer.observation)]
            steps += 1
    return answer.reward > 0, steps


async def main() -> None:
    """Play every world at every temperature."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=GO_TO.model)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first task")
    parser.add_argument("--split", default="test")
    parser.add_argument("--seeds", type=int, default=1, help="episodes per task")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.7, 0.0])
    arguments = parser.parse_args()
    for name, spec in WORLDS.items():
        tasks = list(spec.tasks(arguments.tasks, arguments.split, arguments.first))
        print(f"{name}: {len(tasks)} tasks, expert {np.mean([t.payload.expert_steps for t in tasks]):.1f} steps")
        for temperature in arguments.temperatures:
            model = EmbeddedChatModel(model=str(arguments.model), temperature=temperature)
            solved = np.empty((arguments.seeds, len(tasks)))
            steps = np.empty_like(solved)
            for seed in range(arguments.seeds):
                played = await asyncio.gather(*(play(model, spec, task, seed) for task in tasks))
                solved[seed], steps[seed] = zip(*played, strict=True)
            error = solved.mean(axis=0).std(ddof=1) / np.sqrt(len(tasks))
            best = solved.max(axis=0).mean()
            shown = f"{solved.mean():.3f} +- {error:.3f}, any {best:.3f}, {steps.mean():.1f} steps"
            print(f"  temperature {temperature}: {shown}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
