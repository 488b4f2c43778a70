"""The seam: what a run does beside Algorithm 1. The loop calls the hooks of `Feature` and knows no feature by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StreamMode

from amc_agents.population.particle import Particle
from amc_agents.run import Run
from amc_agents.runtime.door import HOLD as HOLD
from amc_agents.smc.weights import BoolArray
from amc_agents.types import Forkable

Weigh = Callable[[Iterable[int]], Awaitable[None]]
"""Updates the weights of the particles in some slots."""
System = Any
"""A `ParticleSystem`, whose module imports this one."""


@dataclass
class AgentStart:
    """How a particle's agent starts, or goes on from its checkpoint. Features may change it."""

    agent: CompiledStateGraph[Any, Any, Any, Any]
    config: RunnableConfig
    """Without callbacks, which would cost each node time; `configurable` and `metadata` are the particle's own."""
    shared: RunnableConfig
    """The config of all particles, with an `AsyncCallbackManager`."""
    stream_mode: list[StreamMode] = field(default_factory=lambda: ["values", "updates"])
    handlers: list[BaseCallbackHandler] = field(default_factory=list)
    """Callback handlers of the agent; empty: nobody watches it."""


class Feature:
    """Something that a run does beside Algorithm 1. Override what you need; other hooks cost nothing.

    A feature serves one run. The hooks of all features are called in the order of the run's list.
    """

    name: ClassVar[str] = ""
    """Key of its record in a durable point; empty: it records nothing."""
    abrupt: ClassVar[bool] = False
    """Whether `stops` cancels the steps in progress and leaves out the last weighing."""

    async def on_start(self, system: System) -> None:
        """The particles were created, or restored from a durable point."""

    async def on_world(self, world: Forkable) -> None:
        """A world was made by `environment=`, and no particle has acted in it."""

    def on_step(self, system: System, particle: Particle) -> None:
        """A particle has stopped: at the next weighing point, at its end, by a failure, or because it waits."""

    async def on_pause(self, system: System, then: str) -> None:
        """All particles wait between two verbs; `then` is the next verb."""

    def on_weighed(self, system: System) -> None:
        """The particles were weighed: `system.history[-1]`."""

    def before_offspring(self, system: System) -> None:
        """The particles are about to be replaced, by their offspring or by a round of new particles."""

    def on_recruited(self, system: System, earlier: int) -> None:
        """New particles have taken the slots after a number of earlier ones, and start from the agent's input."""

    def on_resampled(self, system: System) -> None:
        """The particles were resampled: `system.history[-1].ancestors`."""

    async def on_cut(self, system: System, weigh: Weigh) -> None:
        """The run ends abruptly: the last chance to weigh some particles."""

    def on_error(self, system: System, error: Exception) -> None:
        """An error ends the run."""

    async def on_answer(self, particle: Particle) -> None:
        """The particle is the answer, or asks a human: its messages are about to be streamed."""

    def on_stopped(self) -> None:
        """All agents were stopped, at the end of the run."""

    async def on_end(self, system: System, run: Run, winner: Particle) -> Run:
        """The run has its result; return it, or what it becomes."""
        return run

    def on_result(self, run: Run, winner: Particle) -> None:
        """The run is complete, and its worlds are closed."""

    def on_close(self) -> None:
        """The run has ended, in whatever way, or was never started."""

    # What follows

    def stops(self, system: System) -> str | None:
        """Return why the run ends now, as `Run.stopped_by`; None: it goes on. Asked whenever a particle has stopped."""
        return None

    async def next(self, system: System, then: str) -> str | None:
        """Return the verb that follows in place of `then`; None: `then`. Asked when the particles were weighed."""
        return None

    def pauses_at(self, system: System) -> int | None:
        """Return a step at which particles wait for each other before the next weighing point; None: there is none."""
        return None

    def offspring(self, system: System) -> int | None:
        """Return the number of offspring of the next resampling; None: as many as particles."""
        return None

    def may_recruit(self, system: System) -> bool:
        """Whether it may still start new particles, so that the present ones may have no part in the answer."""
        return False

    # The answer

    def answer(self, system: System) -> Particle | None:
        """Return the particle that is the answer, whatever its weight; None: the pick decides."""
        return None

    def candidates(self, system: System) -> BoolArray | None:
        """`[M]` the particles of `system.everyone` that may be picked; None: any."""
        return None

    def hides_evidence(self, system: System) -> bool:
        """Whether the weights do not estimate log Z."""
        return False

    # Around the verbs

    def around(self, verb: str, system: System | None) -> AbstractAsyncContextManager[None]:
        """Return a block for the work of a verb; it may interrupt the work without an error, if `stops` tells why.

        Args:
            verb: "start", "propagate", "weigh", "resample" or "recruit".
            system: None: it is not created yet.
        """
        return nullcontext()

    def around_critic(self) -> AbstractContextManager[None]:
        """Return a block for requests to the critic."""
        return nullcontext()

    async def around_weigh(self, system: System, weigh: Weigh) -> bool:
        """Weigh the particles by `weigh(slots)`, and return whether all were weighed."""
        await weigh(range(len(system.particles)))
        return True

    async def around_wait(
        self,
        system: System,
        tasks: dict[asyncio.Task[None], Particle],
        config: RunnableConfig,
        stopped: Callable[[Particle], bool],
    ) -> None:
        """Wait for the tasks of particles, and call `stopped` for each that has ended; True: wait no longer."""
        raise NotImplementedError

    def alone(self, particle: Particle) -> AbstractContextManager[None]:
        """Return a block in which one particle acts while all others wait."""
        return nullcontext()

    # A particle

    def on_fork(self, parent: Particle, child: Particle) -> None:
        """A particle was forked; the child has nothing of this feature yet (`particle.states`)."""

    def before_call(self, particle: Particle, name: str, args: Mapping[str, Any]) -> str | None:
        """Return `HOLD` to hold a call of a tool like a commit call, or the text that the tool answers in place of it.

        None lets it pass. The same call must get the same answer, because LangGraph may run its node again.
        """

    def on_enter(self, particle: Particle) -> None:
        """The particle is about to run; called in its context."""

    async def on_agent_start(self, particle: Particle, start: AgentStart) -> None:
        """The particle's agent is about to start or to go on; `start` may be changed."""

    async def goes_on(self, particle: Particle) -> bool:
        """Return whether the particle makes another step; False drops it (`ParticleRunner.drop`).

        Asked before each step, in the particle's task. An error ends the run.
        """
        return True

    async def on_arrival(self, particle: Particle) -> None:
        """The particle's agent has ended, or waits before a commit call; called in its task, before `on_step`."""

    async def before_step(self, particle: Particle) -> None:
        """The particle is about to make a step."""

    def on_output(self, particle: Particle, mode: str, chunk: Any) -> None:
        """The agent's stream has an event of a mode; "values" is the state after a superstep."""

    async def on_agent_end(
        self, particle: Particle, outcome: str, stream: Any = None, error: BaseException | None = None
    ) -> None:
        """The particle's agent ends; `stream` is that of a paused agent, which is closed afterwards."""

    # Durable points

    def record(self, system: System) -> Any:
        """Return its state as containers, for `restore`."""
        return None

    def restore(self, system: System, recorded: Any) -> None:
        """Take over what `record` returned. The particles have been restored."""

    def record_of(self, particle: Particle) -> Any:
        """Return what it keeps of a particle as containers, for `restore_of`."""
        return None

    def restore_of(self, particle: Particle, recorded: Any) -> None:
        """Take over what `record_of` returned."""


class Features:
    """The features of a run. `features.on_step` is the tuple of the methods of all features that have this hook."""

    def __init__(self, features: Iterable[Feature], late: Mapping[str, Callable[[], Feature]]) -> None:
        self.all = [*features]
        self._late = late

    def __getattr__(self, hook: str) -> tuple[Callable[..., Any], ...]:
        """Return the methods of a hook, in the order of the features."""
        if hook.startswith("_"):
            raise AttributeError(hook)
        unused = getattr(Feature, hook)
        used = tuple(getattr(each, hook) for each in self.all if getattr(type(each), hook) is not unused)
        self.__dict__[hook] = used
        return used

    def add(self, feature: Feature) -> None:
        """Add a feature during the run."""
        self.__dict__ = {"all": [*self.all, feature], "_late": self._late}

    def named(self, name: str) -> Any:
        """Return the feature with a name; None: the run has none."""
        return next((each for each in self.all if each.name == name), None)

    def require(self, name: str) -> Any:
        """Return the feature with a name, which is added if it can be; None: the run has none."""
        if self.named(name) is None and name in self._late:
            self.add(self._late[name]())
        return self.named(name)

    @property
    def recording(self) -> list[Feature]:
        """The features that a durable point records."""
        kept = {Feature.record, Feature.record_of}
        return [each for each in self.all if not kept >= {type(each).record, type(each).record_of}]

    def stop(self, system: System) -> Stop | None:
        """Return why the run ends now; None: it goes on."""
        for stops in self.stops:
            if (reason := stops(system)) is not None:
                return Stop(reason, stops.__self__.abrupt)  # type: ignore[attr-defined]
        return None

    def within(self, verb: str, system: System | None) -> AbstractAsyncContextManager[Any]:
        """Return the block for the work of a verb."""
        blocks = [around(verb, system) for around in self.around]
        return _nested(blocks) if blocks else nullcontext()

    @contextmanager
    def asking_critic(self) -> Iterator[None]:
        """A block for requests to the critic."""
        with ExitStack() as stack:
            for around in self.around_critic:
                stack.enter_context(around())
            yield

    @contextmanager
    def only(self, particle: Particle) -> Iterator[None]:
        """A block in which one particle acts while all others wait."""
        with ExitStack() as stack:
            for alone in self.alone:
                stack.enter_context(alone(particle))
            yield

    async def after(self, system: System, then: str) -> str:
        """Return the verb that follows a weighing, where the weights alone say `then`."""
        for follows in self.next:
            if (verb := await follows(system, then)) is not None:
                return str(verb)
        return then


class Stop(NamedTuple):
    """Why a run ends before all its particles have ended."""

    reason: str
    """As `Run.stopped_by`."""
    abrupt: bool
    """Whether steps in progress are cancelled, and the particles are not weighed once more."""


F = TypeVar("F", bound=Feature)


@asynccontextmanager
async def _nested(blocks: Sequence[AbstractAsyncContextManager[None]]) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for block in blocks:
            await stack.enter_async_context(block)
        yield
