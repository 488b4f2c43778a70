"""Load the user's own agent: `module` or `module:object`."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from langgraph.pregel import Pregel

from amc_agents.bench.own.agent import DEFAULT_HORIZON, OPTIONS, OwnAgent
from amc_agents.critics.options import near
from amc_agents.errors import AmcError, ConfigurationError
from amc_agents.quoting import excerpt, quoted

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
