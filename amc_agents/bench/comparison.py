"""A comparison: which methods run on which tasks, with which policy, critic and world."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import ConfigurableField

from amc_agents.bench.methods import Method, plain_size
from amc_agents.bench.results_folder import WorkItem
from amc_agents.concurrency.background import run_in_background
from amc_agents.config import Config
from amc_agents.critics.adapting import connect
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.uses import LogOdds, for_amc, for_lac
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.errors import ConfigurationError
from amc_agents.lac.model import actor_critic_model
from amc_agents.lac.text_scoring import TextScorer
from amc_agents.pnlc.model import critique_refine_model
from amc_agents.prices import Price
from amc_agents.quoting import quoted
from amc_agents.runtime.deciding import Sink
from amc_agents.runtime.text_agent import text_agent
from amc_agents.settings import AmcSettings
from amc_agents.smc import Adaptive, Never
from amc_agents.types import Critic, Environment, FloatArray, Task, Trajectory

PolicyFunction = Callable[[float], BaseChatModel]
"""Sampling temperature -> the policy."""
AgentFunction = Callable[[BaseChatModel], Any]
"""A chat model -> a compiled graph that it drives."""
_TEMPERATURE = ConfigurableField(id="policy_temperature")
"""Chooses the policy of a particle among several."""


class Played(NamedTuple):
    """An agent, as one run of a comparison plays it."""

    agent: Any
    """A compiled graph."""
    arguments: Mapping[str, Any]
    """Arguments of `amc` that belong to the agent and its task, such as `environment`."""
    input: Mapping[str, Any]
    """The agent's input."""


@dataclass(frozen=True)
class Comparison:
    """Methods x tasks x seeds, and what they run with."""

    policy: PolicyFunction
    environment: Callable[[], Environment]
    """Makes a fresh world."""
    tasks: Sequence[Task]
    methods: Sequence[Method]
    agent: AgentFunction = text_agent
    seeds: Sequence[int] = (0,)
    n_particles: int | Adaptive = AmcSettings.n_particles
    """N of the methods that do not set their own."""
    critic: str | Critic = "uniform"
    """Critic of the methods that do not name their own."""
    horizon: int = 20
    success: float = 1.0
    """Minimum return that counts as a success."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Other plain values that determine the results (policy, weights, world): stored, and checked on resuming."""
    scorer: Callable[[], TextScorer] | None = None
    """Makes the scorer of texts by the policy, for decisions whose prior needs it."""
    actions: Sequence[str] | None = None
    """All actions that exist at any step, for methods that use them as candidates."""

    rules: str = ""
    """How to act, as a system message, for a policy that was not trained for the world."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """The user's prices by model, for costs in dollars."""

    _critics: dict[str, Critic] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Validate the comparison, and connect its critics.

        Critics are parsed here because no event loop is running yet: a critic behind a server is connected.
        """
        self._check_names()
        self._parsed(self.critic)
        for method in self.methods:
            self._check_method(method)

    def _check_names(self) -> None:
        names_of: dict[str, list[str]] = {
            "tasks": [task.id for task in self.tasks],
            "methods": [method.name for method in self.methods],
            "seeds": [str(seed) for seed in self.seeds],
        }
        for kind, names in names_of.items():
            if not names:
                raise ConfigurationError(f"a comparison needs {kind}, got none")
            if len(set(names)) < len(names):
                raise ConfigurationError(
                    f"{len(names)} {kind} with {len(set(names))} different names: every name must be unique"
                )

    def _check_method(self, method: Method) -> None:
        if method.listed and self.actions is None:
            raise ConfigurationError(f"{method.name} decides among all actions, and this world lists none")
        if steered_blindly(method) and not predicts_return(self.critic_of(method)):
            raise ConfigurationError(
                f"{method.name} hides rewards, so its critic must predict the whole return, but {quoted(self.critic)} "
                "predicts the future return: train a critic with target 'return', or leave the method out"
            )
        if method.race is not None:
            method.race.check(AmcSettings(n_particles=self.size_of(method), resample=method.resample))
            if method.race.finish > 1 and not predicts_return(self.critic_of(method)):
                raise ConfigurationError(
                    f"{method.name} ends with {method.race.finish} particles, among which a critic that predicts the "
                    'whole return must choose: train one with target "return" and name it, or let the first one win '
                    "(finish=1)"
                )
        if method.decision is None:
            # Refuse an eq. 5 model for another beta now instead of in the first run.
            for_amc(self.critic_of(method), beta=method.beta, success_reward=method.success_reward)

    def items(self) -> list[WorkItem]:
        """Return every run, in an order in which an interruption leaves all methods with the same tasks."""
        runs = product(self.seeds, self.tasks, self.methods)
        return [WorkItem(method.name, task.id, seed) for seed, task, method in runs]

    def critic_of(self, method: Method) -> Critic:
        """Return the critic of a method; methods that name the same critic share the object.

        A run that hides rewards and is not resampled would evaluate finished trajectories only. A critic that predicts
        the future return cannot do that, so such a run uses `uniform` instead.
        """
        critic = self._parsed(self.critic if method.critic is None else method.critic)
        only_at_end = method.hide_rewards and not steered_blindly(method)
        return self._parsed("uniform") if only_at_end and not predicts_return(critic) else critic

    def _parsed(self, critic: str | Critic) -> Critic:
        if not isinstance(critic, str):
            return critic
        if critic not in self._critics:
            self._critics[critic] = ready_critic(critic)
        return self._critics[critic]

    def model_of(self, method: Method, task: Task, sink: Sink | None = None) -> BaseChatModel:
        """Return the chat model of a method's agent: the policy, or a model that decides among the policy's samples.

        Args:
            method: one of the methods.
            task: the task of the run, passed only to oracle critics.
            sink: receives the record of each decision.
        """
        policy, settings = self._policy_of(method), method.decision
        if method.planning is not None:
            choosing: Any = asdict(method.planning)
            return critique_refine_model(policy, **choosing, config=Config()).model_copy(update={"sink": sink})
        if settings is None:
            return policy
        scores = settings.prior != "frequency" and self.scorer is not None
        critic = self.critic_of(method)
        options: Any = asdict(settings)
        deciding = actor_critic_model(
            policy,
            for_task(critic, task) if method.oracle else critic,
            **options,
            scorer=self.scorer() if scores and self.scorer else None,
            actions=self.actions if method.listed else None,
            config=Config(),
        )
        return deciding.model_copy(update={"sink": sink})

    def _policy_of(self, method: Method) -> BaseChatModel:
        if not method.temperatures:
            return self.policy(method.temperature)
        first, *others = method.temperatures
        models: dict[str, Any] = {f"{each:g}": self.policy(each) for each in others}
        several = self.policy(first).configurable_alternatives(_TEMPERATURE, default_key=f"{first:g}", **models)
        return cast(BaseChatModel, several)  # the agent calls it as it calls a chat model

    def played(self, method: Method, task: Task, sink: Sink | None = None) -> Played:
        """Return the agent of a run, its input, and its arguments of `amc`; the arguments are those of `model_of`."""
        arguments: dict[str, Any] = {"environment": lambda _: (self.environment(), task)}
        if method.temperatures:
            proposals = [{_TEMPERATURE.id: f"{each:g}"} for each in method.temperatures]
            arguments["settings"] = AmcSettings(proposals=proposals)
        return Played(self.agent(self.model_of(method, task, sink)), arguments, self.input_of(method, task))

    def input_of(self, method: Method, task: Task) -> Mapping[str, Any]:
        """Return the agent's input."""
        system = "\n\n".join(text for text in (self.rules, method.system) if text)
        return {"messages": [*([("system", system)] if system else []), ("user", task.instruction)]}

    def size_of(self, method: Method) -> int | Adaptive:
        """Return the number of particles of a method."""
        return self.n_particles if method.n_particles is None else method.n_particles

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that all results share, as plain values."""
        critic = self._parsed(self.critic)
        return {
            **self.about,
            "critic": self.critic if isinstance(self.critic, str) else type(self.critic).__name__,
            "critic_fingerprint": _fingerprint(critic),
            "n_particles": plain_size(self.n_particles),
            "horizon": self.horizon,
            "success": self.success,
            # For the methods that do not set their own.
            "finished": AmcSettings.finished,
            "scheme": AmcSettings.scheme,
        }

    @property
    def method_settings(self) -> dict[str, dict[str, Any]]:
        """The settings of each method as plain values, which a resumed run must share."""
        return {method.name: method.as_plain() | self._fingerprint_of(method) for method in self.methods}

    def _fingerprint_of(self, method: Method) -> dict[str, Any]:
        # `settings` has the fingerprint of the comparison's own critic.
        judged = method.decision is not None and method.decision.use_critic and method.critic is not None
        return {"critic_fingerprint": _fingerprint(self.critic_of(method))} if judged else {}


def ready_critic(spec: str) -> Critic:
    """Parse a critic, and connect it if it is behind a server. Must not be called on an event loop."""
    critic = parse_critic(spec)
    if hasattr(critic, "connect"):
        run_in_background(connect(critic), n_workers=1)
    return critic


def steered_blindly(method: Method) -> bool:
    """Return whether the method resamples without seeing rewards, so that its critic must predict the whole return."""
    return method.hide_rewards and method.resample != Never()


def predicts_return(critic: Critic) -> bool:
    """Return whether the critic predicts the whole return, so that it can also score a finished trajectory."""
    return getattr(critic, "predicts", "future") == "return"


def for_task(critic: Any, task: Task) -> LogOdds:
    """Wrap a critic so that it evaluates every trajectory as a trajectory of this task, payload included.

    Raises:
        ConfigurationError: the critic cannot judge actions.
    """
    return _TaskCritic(for_lac(critic), task)


class _TaskCritic:
    def __init__(self, critic: LogOdds, task: Task) -> None:
        self._critic, self._task = critic, task

    async def log_odds(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        return await self._critic.log_odds([replace(trajectory, task=self._task) for trajectory in trajectories])


def _fingerprint(critic: Critic) -> str | None:
    """Identify a trained critic by its checkpoint's hashes, golden scores and conversion; None without a checkpoint.

    The checkpoint of a verdict critic is in its reader. A critic behind a server has none before it is connected.
    """
    checkpoint = getattr(getattr(critic, "reader", critic), "checkpoint", None)
    if checkpoint is None:
        return None
    facts = [checkpoint.base_model_hash, checkpoint.data_hash, *(golden.score for golden in checkpoint.golden)]
    if isinstance(checkpoint, ValueCheckpoint) and checkpoint.conversion():
        facts.append(checkpoint.conversion())
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
