"""Several proposals: particles of one population that are sampled with different settings of the agent."""

from __future__ import annotations

from collections.abc import Sequence

from amc_agents.population.feature import AgentStart, Feature
from amc_agents.population.particle import Particle
from amc_agents.population.settings import Proposal
from amc_agents.population.system import ParticleSystem


class Proposals(Feature):
    """Gives the particles of one population different settings.

    Args:
        proposals: the settings of the particles whose line began in slot i are those with number i modulo their number.
    """

    name = "proposals"

    def __init__(self, proposals: Sequence[Proposal]) -> None:
        self._proposals = proposals

    async def on_start(self, system: ParticleSystem) -> None:
        """Number the new particles."""
        self.on_recruited(system, 0)

    def on_recruited(self, system: ParticleSystem, earlier: int) -> None:
        """Number the particles of a further round."""
        for particle in system.particles:
            particle.states.setdefault(Proposals, earlier + particle.index)

    def on_fork(self, parent: Particle, child: Particle) -> None:
        """Keep the parent's number."""
        child.states[Proposals] = parent.of(Proposals)

    async def on_agent_start(self, particle: Particle, start: AgentStart) -> None:
        """Apply the settings."""
        own = self._proposals[particle.states[Proposals] % len(self._proposals)]
        start.config["configurable"].update(own)

    def record_of(self, particle: Particle) -> int:
        """Return the particle's number."""
        return int(particle.states[Proposals])

    def restore_of(self, particle: Particle, recorded: int) -> None:
        """Take over the particle's number."""
        particle.states[Proposals] = recorded
