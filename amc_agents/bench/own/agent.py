"""The user's own agent: `module` or `module:object`, its functions, and the arguments of `amc` for one of its tasks."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from langgraph.pregel import Pregel

from amc_agents.critics.spec import near
from amc_agents.errors import AgentContractError, AmcError, ConfigurationError
from amc_agents.quoting import excerpt, quoted
from amc_agents.runtime.contract import Agent, check_agent, check_effects, pausing_nodes
from amc_agents.runtime.effects import Deferred, Effect, attempts_of
from amc_agents.settings import AmcSettings
from amc_agents.types import Environment, Forkable, Task

ScoreFunction = Callable[[Any, Task], float | Awaitable[float]]
"""(state of the agent, task) -> the return so far."""
DEFAULT_HORIZON = 50
OPTIONS = ("step_after", "step_timeout", "run_timeout", "tools", "stateless_tools", "trajectory")
"""Arguments of `amc`, and fields of its `AmcSettings`, that the module may give in `amc_options`.

The comparison chooses the others.
"""


@dataclass(frozen=True)
class OwnAgent:
    """An agent of the user, with its worlds and scores."""

    name: str
    """`module` or `module:object`."""
    make_agent: Callable[[float], Agent]
    """Sampling temperature -> a compiled graph. Called for every run, so that runs share no state."""
    score: ScoreFunction | None = None
    """None: the worlds give the rewards."""
    make_environment: Callable[[Task], Any] | None = None
    """Task -> a fresh world; None: the agent needs no world."""
    make_input: Callable[[Task], Mapping[str, Any]] | None = None
    """Task -> input of the agent; None: the instruction as a user message."""
    temperature: float = 1.0
    """The temperature of the plain agent."""
    temperature_is_fixed: bool = False
    """`make_agent` ignores its argument: a compiled graph has the temperature that it was built with."""
    horizon: int = DEFAULT_HORIZON
    """Maximum number of steps of a trajectory."""
    success: float = 1.0
    """Minimum return that counts as a success, in the units of the score."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Other arguments of `amc`, by the names in `OPTIONS`."""
    source_hash: str = ""
    """Fingerprint of the module's file: results of different code must not be mixed."""

    def input_of(self, task: Task) -> Mapping[str, Any]:
        """Return the agent's input for a task."""
        return self.make_input(task) if self.make_input else {"messages": [("user", task.instruction)]}

    def arguments_for(self, task: Task, graph: Agent) -> dict[str, Any]:
        """Return the arguments of `amc` that this agent determines.

        Args:
            task: the task of the run.
            graph: the agent, made for this run.
        """
        options = dict(self.options)
        settings: dict[str, Any] = {
            name: options.pop(name) for name in ("run_timeout", "trajectory") if name in options
        }
        arguments: dict[str, Any] = {**options, "checkpointer": False, "tools": self.tools_for(graph)}
        if self.make_environment is not None:
            arguments["environment"] = self._environment(task)
        if self.score is not None:
            arguments["reward"], settings["rewards"] = self._reward(task), "function"
        return {**arguments, "settings": AmcSettings(**settings)}

    def tools_for(self, graph: Agent) -> dict[str, Effect]:
        """Return the declared effects of tools, with a stand-in for every commit tool.

        A comparison never acts in reality. A commit tool without a stand-in result ends its particle.

        Raises:
            AgentContractError: an effect is missing or impossible, or a node is declared "commit".
        """
        given: dict[str, Effect] = dict(self.options.get("tools") or {})
        declared = check_effects(
            graph,
            pausing_nodes(graph, self.options.get("step_after")),
            given,
            stateless_tools=bool(self.options.get("stateless_tools")),
            has_world=self.make_environment is not None,
        )
        if declared.commit_nodes:
            raise AgentContractError(
                f'node {min(declared.commit_nodes)} is declared "commit", and a comparison never acts in reality: move '
                'its action into a tool, or declare the node "read" in amc_options and let it act on a stand-in'
            )
        commits = {name: Deferred() for name, effect in declared.tools.items() if attempts_of(effect)}
        return {**given, **commits}

    def check(self) -> list[str]:
        """Build the agent once and check it, so that mistakes are found before anything is played.

        Returns:
            Names of the commit tools, which end their particle.

        Raises:
            ConfigurationError: `make_agent` failed, or its result cannot be run as particles.
        """
        try:
            graph = self.make_agent(self.temperature)
        except Exception as error:
            raise ConfigurationError(
                f"{self.name}: make_agent({self.temperature:g}) failed ({excerpt(f'{type(error).__name__}: {error}')})"
            ) from error
        try:
            check_agent(graph, gives_trajectory=self.options.get("trajectory") is not None)
            tools = self.tools_for(graph)
        except AgentContractError as error:
            raise AgentContractError(f"{self.name}: {error} (arguments of amc() go into its amc_options)") from error
        return sorted(name for name, kind in tools.items() if isinstance(kind, Deferred) and not kind.has_result)

    def _environment(self, task: Task) -> Callable[[Any], Awaitable[Any]]:
        async def make(_: Any) -> Any:
            assert self.make_environment is not None
            made = self.make_environment(task)
            world = await made if inspect.isawaitable(made) else made
            if not isinstance(world, Forkable):
                raise ConfigurationError(
                    f"{self.name}: make_environment returned {type(world).__name__} for task {quoted(task.id)}: "
                    "expected a world with fork(seed) and close(), and with reset and step if it gives rewards"
                )
            if self.score is None and not isinstance(world, Environment):
                raise ConfigurationError(
                    f"{self.name}: the world {type(world).__name__} gives no rewards (it has no reset and step), so "
                    "the module needs score(state)"
                )
            # Without a task, a critic reads the agent's own first messages, as it does in production.
            return (world, task) if isinstance(world, Environment) else world

        return make

    def _reward(self, task: Task) -> Callable[[Any], Awaitable[float]]:
        async def reward(state: Any) -> float:
            assert self.score is not None
            answer = self.score(state, task)
            value: Any = await answer if inspect.isawaitable(answer) else answer
            try:
                return float(value)
            except (TypeError, ValueError):
                raise ConfigurationError(
                    f"{self.name}: score returned {excerpt(repr(value), 80)} for task {quoted(task.id)}: expected a "
                    "number, 0 while the outcome is open"
                ) from None

        return reward


PROTOCOL = "make_agent(temperature), and score(state) unless make_environment(task) gives rewards"


def load_own_agent(name: str) -> OwnAgent:
    """Load an agent by name; modules in the working directory can be named too.

    Args:
        name: `module`, whose functions are the protocol; or `module:object`, an object with these functions, or a
            compiled graph or a function of the temperature that makes it, whose other functions are the module's.

    Raises:
        ConfigurationError: the module cannot be imported, or a function is missing or cannot be called as needed.
    """
    module, path, named = _imported(name)
    given = _Given(name, module if named is None else named, module)
    make_agent, fixed = given.make_agent()
    score, make_environment = given.score(), given.function("make_environment")
    if score is None and make_environment is None:
        raise ConfigurationError(f"{name} has no score and no make_environment: expected {PROTOCOL}")
    return OwnAgent(
        name=name,
        make_agent=make_agent,
        score=score,
        make_environment=make_environment,
        make_input=given.function("make_input"),
        temperature=1.0 if fixed else _default_temperature(make_agent),
        temperature_is_fixed=fixed,
        horizon=given.number("horizon", DEFAULT_HORIZON, whole=True),
        success=given.number("success", 1.0),
        options=given.options(),
        source_hash=hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path is not None else "",
    )


class _Given:
    """What the user gives: an object with the functions of the protocol, or a graph in a module with the others."""

    def __init__(self, name: str, named: Any, module: ModuleType) -> None:
        self.name, self.named = name, named
        has_protocol = hasattr(named, "make_agent")
        if isinstance(named, type) and has_protocol:
            named = named()
        self.owner: Any = named if has_protocol else module
        self.is_owner = has_protocol

    def make_agent(self) -> tuple[Callable[[float], Any], bool]:
        """Return the function that makes the agent, and whether the temperature has no effect."""
        named = self.named
        if self.is_owner:
            return self.function("make_agent") or _missing(self.name, "make_agent"), False
        if isinstance(named, Pregel):
            return lambda temperature: named, True
        if isinstance(named, ModuleType):
            raise ConfigurationError(
                f"{self.name} has no make_agent{near('make_agent', dir(named))}: expected {PROTOCOL}; or name a "
                f"compiled graph, {self.name}:graph"
            )
        _check_call(self.name, self.name.rpartition(":")[2], named, 1)
        return named, False

    def score(self) -> Callable[..., Any] | None:
        """Return the score as a function of state and task; the user's function may leave out the task."""
        score = getattr(self.owner, "score", None)
        if score is None:
            return None
        _check_call(self.name, "score", score, 1, 2)
        if _takes(score, 2):
            return cast(Callable[..., Any], score)
        return lambda state, task: score(state)

    def function(self, name: str) -> Callable[..., Any] | None:
        """Return an optional function of one argument."""
        function = getattr(self.owner, name, None)
        if function is not None:
            _check_call(self.name, name, function, 1)
        return cast(Callable[..., Any] | None, function)

    def number(self, name: str, default: float, *, whole: bool = False) -> Any:
        """Return an optional number above 0."""
        value = getattr(self.owner, name, default)
        kinds = (int,) if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or value <= 0:
            raise ConfigurationError(
                f"{self.name}: {name} is {quoted(value, 80)}, expected a {'whole ' if whole else ''}number above 0"
            )
        return value

    def options(self) -> Mapping[str, Any]:
        """Return the other arguments of `amc`."""
        options = getattr(self.owner, "amc_options", {})
        if not isinstance(options, Mapping):
            raise ConfigurationError(
                f"{self.name}: amc_options is a {type(options).__name__}, expected a dictionary of arguments of amc()"
            )
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise ConfigurationError(
                f"{self.name}: amc_options has {quoted(unknown[0])}{near(unknown[0], list(OPTIONS))}: it takes "
                f"{', '.join(OPTIONS)}; the comparison chooses the other arguments of amc()"
            )
        return options


def _imported(name: str) -> tuple[ModuleType, Path | None, Any]:
    """Import the module; return it, its file, and the object that is named in it, if any."""
    module_name, colon, attribute = name.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        raise ConfigurationError(
            f"--agent {name}: expected the name of a module, such as {Path(module_name).stem}, not a file. Modules in "
            "the working directory are found"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = import_module(module_name)
    except AmcError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"--agent {name}: the module {quoted(module_name)} cannot be imported from {Path.cwd()} "
            f"({excerpt(f'{type(error).__name__}: {error}')})"
        ) from error
    file = Path(module.__file__) if module.__file__ else None
    if not colon:
        return module, file, None
    if not hasattr(module, attribute):
        known = [key for key in vars(module) if not key.startswith("_")]
        raise ConfigurationError(f"--agent {name}: the module has no {quoted(attribute)}{near(attribute, known)}")
    return module, file, getattr(module, attribute)


def _check_call(agent: str, name: str, function: Any, *counts: int) -> None:
    """Refuse what cannot be called with one of these numbers of arguments."""
    usual = {"score": "score(state) or score(state, task)", "make_agent": "make_agent(temperature)"}
    expected = usual.get(name, f"{name}(task)" if name.startswith("make_") else f"{name}(temperature)")
    if not callable(function):
        raise ConfigurationError(f"{agent}: {name} is a {type(function).__name__}, expected a function {expected}")
    if not any(_takes(function, count) for count in counts):
        raise ConfigurationError(f"{agent}: {name} cannot be called as {expected}: its signature differs")


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # Written in C, without a signature.
        return count == 1
    return True


def _default_temperature(make_agent: Callable[..., Any]) -> float:
    """Return the default of the temperature: it is the plain agent's."""
    parameter = next(iter(inspect.signature(make_agent).parameters.values()), None)
    default = None if parameter is None else parameter.default
    if isinstance(default, bool) or not isinstance(default, int | float):
        return 1.0
    return float(default) if default > 0 else 1.0


def _missing(agent: str, name: str) -> Any:
    raise ConfigurationError(f"{agent}: {name} is missing: expected {PROTOCOL}")
