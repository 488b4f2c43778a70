"""AMC around a deep agent of `deepagents`: its files are in its state, and `act` acts in its particle's world.

`pip install deepagents`, then `langgraph dev --config langgraph.deep.json` serves it beside the other graphs.
"""

from __future__ import annotations

from deepagents import create_deep_agent
from shared.acting import FewFailures, act
from shared.commands_as_calls import CommandsAsCalls
from shared.models import OWN_MODEL, RULES, chat_model
from shared.population import population
from shared.tasks import HORIZON, crafting_world, served

from amc_agents import AtSteps, amc
from amc_agents.runtime.effects import Effect

# Files lie in the agent's state, which is forked with the particle; there is no shell. A sub-agent may call `act`.
FILES = ("ls", "read_file", "write_file", "edit_file", "delete", "glob", "grep", "execute")
EFFECTS: dict[str, Effect] = {**dict.fromkeys(FILES, "read"), "task": "world"}
agent = create_deep_agent(chat_model(0.7), [act], middleware=[] if OWN_MODEL else [CommandsAsCalls()],
                          system_prompt=RULES if OWN_MODEL else None)  # fmt: skip
particles = amc(agent, "few-failures", critics={"few-failures": FewFailures(), "uniform": "uniform"}, tools=EFFECTS,
                n_particles=8, resample=AtSteps(4, 8), beta=0.1, horizon=HORIZON,
                environment=crafting_world)  # fmt: skip
graph = served("deep_agent", population(particles))
