"""AgentGym's environment servers as worlds for amc-agents."""

from amc_agents_agentgym.dialects import DIALECTS, Dialect
from amc_agents_agentgym.errors import AgentGymError, AgentGymTimeout
from amc_agents_agentgym.server import AgentGymServer
from amc_agents_agentgym.spec import SPLITS, agentgym_world
from amc_agents_agentgym.world import AgentGymTask, AgentGymWorld

__all__ = [
    "DIALECTS",
    "SPLITS",
    "AgentGymError",
    "AgentGymServer",
    "AgentGymTask",
    "AgentGymTimeout",
    "AgentGymWorld",
    "Dialect",
    "agentgym_world",
]
