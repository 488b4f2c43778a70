"""A hard budget for an agent that runs as particles: what it may cost, and what comes back when it is used up.

This example uses the policy and critic of the package and needs no key. With another model, set its `max_tokens`: a
budget of tokens or dollars reserves the largest possible answer before each request.
"""

from __future__ import annotations

from amc_agents import AtSteps, Budget, BudgetExhausted, amc, text_agent
from amc_agents.envs.crafting import CraftingWorld, generate_task
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.prices import Price

TASK = generate_task(7, "examples", optimal_steps=(6, 8))
GIVEN = {"messages": [("user", TASK.instruction)]}
PRICES = {"crafting": Price(input=1.0, output=4.0), "embedded:crafting": Price(input=0.1, output=0.0)}
"""Dollars per million tokens; the embedded models are free, so these prices are made up."""


def make_graph(budget):
    """The agent as 15 particles. All calls of the graph share the budget."""
    return amc(
        text_agent(EmbeddedChatModel(temperature=0.7, max_tokens=60)), "embedded:crafting",
        environment=lambda state: (CraftingWorld(), TASK),
        n_particles=15, resample=AtSteps(4, 8), beta=0.1, horizon=20, seed=1, budget=budget,
    )  # fmt: skip


def report(name, budget):
    """Run the agent once and print the outcome."""
    try:
        run = make_graph(budget).run(GIVEN)
    except BudgetExhausted as error:
        print(f"{name}: no answer after {error.usage['policy'].calls} calls")
        return
    ended = "ended by the budget" if run.stopped_by == "budget" else "ended by itself"
    print(f"{name}: return {run.best.return_:g}, {run.usage['policy'].calls} calls, {ended}; {budget}")


if __name__ == "__main__":
    report("no limit reached", Budget(dollars=1.0, calls=1000, prices=PRICES))
    report("half of that", Budget(calls=60))
    report("two plain runs", Budget(calls=16))
    report("too small", Budget(calls=4))
