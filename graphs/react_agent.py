"""AMC around a tool-calling agent of `create_agent`: its tool acts in the particle's world, which is forked with it.

The package's model writes its commands as text, which a middleware turns into tool calls. A model named by `AMC_MODEL`
calls the tool itself.
"""

from __future__ import annotations

from langchain.agents import create_agent
from shared.acting import FewFailures, act
from shared.commands_as_calls import CommandsAsCalls
from shared.models import OWN_MODEL, RULES, chat_model
from shared.population import population
from shared.tasks import HORIZON, crafting_world, served

from amc_agents import AtSteps, amc

agent = create_agent(chat_model(0.7), [act], middleware=[] if OWN_MODEL else [CommandsAsCalls()],
                     system_prompt=RULES if OWN_MODEL else None)  # fmt: skip
particles = amc(agent, "few-failures", critics={"few-failures": FewFailures(), "uniform": "uniform"}, n_particles=15,
                resample=AtSteps(4, 8), beta=0.1, horizon=HORIZON, environment=crafting_world)  # fmt: skip
graph = served("react_agent", population(particles))
