"""The owner of everything that one run of an `amc` graph has open, whatever ends it."""

from __future__ import annotations

from langchain_core.runnables import RunnableConfig

from amc_agents.concurrency.background import on_background_loop, run_in_background, start_in_background
from amc_agents.concurrency.gather import to_its_end
from amc_agents.errors import AgentContractError
from amc_agents.population.population import ParticleSystem
from amc_agents.runtime.world import Worlds

_KEY = "__amc_open_run"


class OpenRun:
    """Worlds and paused agents of one run. `init` fills it, whoever reads the graph's stream closes it.

    Args:
        wants_events: the reader of the custom stream wants what the agents write to it. Hearing them costs a tenth of
            a step.
    """

    def __init__(self, *, wants_events: bool = True) -> None:
        self.wants_events = wants_events
        self.worlds = Worlds()
        self.system: ParticleSystem | None = None

    @classmethod
    def of(cls, config: RunnableConfig) -> OpenRun:
        """The owner of the run that a node belongs to."""
        owner = config.get("configurable", {}).get(_KEY)
        if not isinstance(owner, cls):
            raise AgentContractError(
                "this graph was compiled again from the builder of an amc() graph, and nothing would close its worlds: "
                "run the graph that amc() returned; graph.copy(update={...}) gives it another checkpointer or store"
            )
        return owner

    def within(self, config: RunnableConfig | None) -> RunnableConfig:
        """The config of a call, which leads its nodes to this owner."""
        config = config or {}
        return {**config, "configurable": {**config.get("configurable", {}), _KEY: self}}

    def close(self) -> None:
        """Stop the agents and close the worlds; after a finished run there are none."""
        if not self._is_open:
            return
        if on_background_loop():
            # An abandoned stream that the garbage collector ends there.
            start_in_background(self._close())
        else:
            run_in_background(self._close(), n_workers=1)

    async def aclose(self) -> None:
        """Like `close`, and not given up when the caller is cancelled meanwhile."""
        if not self._is_open:
            return
        await to_its_end(self._close())

    @property
    def _is_open(self) -> bool:
        return self.system is not None or self.worlds.any_open

    async def _close(self) -> None:
        if self.system is not None:
            await self.system.close()
        await self.worlds.close_all()
        self.system = None
