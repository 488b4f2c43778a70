"""LAC inside AMC: particles whose every turn is LAC's, weighed and resampled by the same critic.

The run's context chooses the critic of the resampling.
"""

from __future__ import annotations

from shared.models import CRITIC, CRITICS, chat_model
from shared.population import population
from shared.tasks import HORIZON, crafting_world, served

from amc_agents import AtSteps, actor_critic_model, amc, text_agent

decides = actor_critic_model(chat_model(1.0), CRITIC, critics=CRITICS, k=3, alpha=5.0)
particles = amc(text_agent(decides), CRITIC, critics=CRITICS, environment=crafting_world, n_particles=5,
                resample=AtSteps(4, 8), beta=0.1, horizon=HORIZON)  # fmt: skip
graph = served("lac_in_amc", population(particles))
