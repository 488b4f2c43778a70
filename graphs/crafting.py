"""AMC around the text agent, with the policy and critic of the package, for `langgraph dev` and Studio.

Send `task 7` or a whole crafting instruction. The run's context chooses another critic.
"""

from __future__ import annotations

from shared.models import CRITIC, CRITICS, chat_model
from shared.population import population
from shared.tasks import HORIZON, crafting_world, served

from amc_agents import AtSteps, amc, text_agent

# A run can name only one of these critics, not an arbitrary critic string.
particles = amc(text_agent(chat_model(0.7)), CRITIC, critics=CRITICS, environment=crafting_world,
                n_particles=15, resample=AtSteps(4, 8), beta=0.1, horizon=HORIZON)  # fmt: skip
graph = served("crafting", population(particles))
