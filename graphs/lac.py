"""LAC: each turn chooses among five candidate actions, by their frequency and by the critic's verdict."""

from __future__ import annotations

from shared.models import CRITIC, CRITICS, chat_model
from shared.single import single
from shared.tasks import served

from amc_agents import actor_critic_node

graph = served("lac", single(actor_critic_node(chat_model(1.0), CRITIC, critics=CRITICS, k=5, alpha=5.0)))
