"""Swap the critic, a string or an object, in the constructor or for a single call."""

from __future__ import annotations

import numpy as np

from amc_agents import AtSteps, amc, text_agent
from amc_agents.envs.crafting import CraftingWorld, generate_task
from amc_agents.models.embedded import EmbeddedChatModel

TASK = generate_task(7, "examples", optimal_steps=(6, 8))


class Crafted:
    """A custom critic that prefers trajectories with more crafted items. Any object with `values` is a critic."""

    async def values(self, trajectories):
        """`[N]` predicted future returns."""
        crafted = [sum(step.observation.startswith("Crafted") for step in path.steps) for path in trajectories]
        return np.tanh(np.array(crafted, dtype=np.float64) / 4)


def show(name, run):
    returns = [trajectory.return_ for trajectory in run.population.trajectories]
    calls = run.usage["critic"].calls if "critic" in run.usage else 0
    print(f"{name:40} best {run.best.return_:g}  mean {np.mean(returns):.2f}  calls of the critic's model {calls}")


if __name__ == "__main__":
    settings = dict(
        environment=lambda state: (CraftingWorld(), TASK),
        n_particles=15, resample=AtSteps(4, 8), beta=0.1, horizon=20, seed=1,
    )  # fmt: skip
    agent = text_agent(EmbeddedChatModel(temperature=0.7))
    given = {"messages": [("user", TASK.instruction)]}

    # In the constructor: a string or an object.
    graph = amc(agent, "uniform", **settings)
    show("constructor: uniform", graph.run(given))
    show("constructor: an object", amc(agent, Crafted(), **settings).run(given))

    # For a single call: the same graph with another critic.
    show("context: embedded:crafting", graph.run(given, context={"critic": "embedded:crafting"}))
    show("configurable: an object", graph.run(given, {"configurable": {"critic": Crafted()}}))
