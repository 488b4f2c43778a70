"""Your own objects and functions as critics: checked when they are passed, and called in a thread if they are sync."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial, partialmethod
from types import MappingProxyType
from typing import Any, Protocol

from amc_agents.concurrency.background import in_new_thread
from amc_agents.critics.validation import checked_values, failing_as_critic_error
from amc_agents.errors import CriticError, CriticSpecError
from amc_agents.quoting import quoted
from amc_agents.types import Critic, Trajectory


class SyncCritic(Protocol):
    """A critic with a sync method, which is called in a thread so that it does not block the event loop."""

    def values(self, trajectories: Sequence[Trajectory]) -> Any:
        """Return `[N]` values, as `Critic.values` does."""
        ...


CriticFunction = Callable[[Sequence[Trajectory]], Any]
"""Maps trajectories to `[N]` values, or to an awaitable of them: the method `values` without an object."""
CriticLike = Critic | SyncCritic | CriticFunction
"""The objects accepted as a critic; a critic string is the alternative."""

_JUDGING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "values": ("trajectories",),
        "log_odds": ("trajectories",),
        "q_values": ("trajectory", "actions"),
        "reach": ("trajectory", "thought", "goals"),
    }
)
"""Methods that make an object a critic -> their arguments."""
_OPTIONAL: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"judgements": ("trajectories",), "connect": (), "prepare": ("trajectory",)}
)
"""Further methods that a critic may have -> their arguments."""
_EXPECTED = (
    "expected a critic or its string: an object with `values` (or `log_odds`, `q_values`, `reach`), or a function of "
    "trajectories"
)


def adapted(critic: Any) -> Any:
    """Wrap an object or a function as a critic with async methods; return an async critic unchanged.

    Raises:
        CriticSpecError: the object has no method of a critic, a method with the wrong arguments, or a sync method that
            does not return one number per trajectory.
    """
    if isinstance(critic, type):
        raise CriticSpecError(f"{_EXPECTED}; got the class {critic.__name__}: pass an instance, {critic.__name__}(...)")
    methods = {} if isinstance(critic, Mapping) else _methods(critic)  # a mapping has a method `values`, too
    if not methods and callable(critic):
        _require_call(critic, critic, name_of(critic), _JUDGING["values"])
        _try_without_trajectories(critic, name_of(critic))
        return _Adapted(critic, {"values": critic})
    if not methods.keys() & _JUDGING.keys():
        raise CriticSpecError(f"{_EXPECTED}; got {type(critic).__name__}")
    for name, method in methods.items():
        _require_call(critic, method, f"{name_of(critic)}.{name}", {**_JUDGING, **_OPTIONAL}[name])
    predicts = inspect.getattr_static(critic, "predicts", "future")
    if isinstance(predicts, str) and predicts not in ("future", "return"):
        raise CriticSpecError(
            f"critic {name_of(critic)} has predicts={quoted(predicts)}: expected 'future', the return still to come, "
            "or 'return', the whole return"
        )
    for name in ("values", "log_odds"):
        if name in methods:
            _try_without_trajectories(methods[name], f"{name_of(critic)}.{name}")
    return critic if all(map(_is_async, methods.values())) else _Adapted(critic, methods)


def original(critic: Any) -> Any:
    """Return the object or function that `adapted` was called with."""
    while isinstance(critic, _Adapted):
        critic = critic.original
    return critic


def name_of(critic: Any) -> str:
    """A critic's name in messages: the name of the function, or of the object's class."""
    unwrapped = original(critic)
    return str(getattr(unwrapped, "__name__", type(unwrapped).__name__))


async def connect(critic: Any) -> None:
    """Call a critic's method `connect`, if it has one, so that a missing server is noticed before a run costs anything.

    Raises:
        CriticError: the method failed; `ConfigurationError` and `CheckpointError` pass unchanged.
    """
    method: Callable[[], Awaitable[Any]] | None = getattr(critic, "connect", None)
    if method is None:
        return
    with failing_as_critic_error(f"critic {name_of(critic)}: connect()"):
        await method()


def failing(critic: Any, error: CriticError) -> Any:
    """Replace a critic that cannot be connected: every method raises `error` at once."""

    async def fail(*_: Any) -> Any:
        raise error

    return _Adapted(critic, {name: fail for name in (*_JUDGING, "judgements") if hasattr(critic, name)})


class _Adapted:
    """A critic whose sync methods are replaced by async ones; other attributes are the original's."""

    def __init__(self, critic: Any, methods: Mapping[str, Callable[..., Any]]) -> None:
        self.original = critic
        for name, method in methods.items():
            # Set on the instance: runtime protocols look up methods without calling `__getattr__`.
            vars(self)[name] = method if _is_async(method) else partial(_in_thread, method)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "original":  # `copy` looks these up before the instance is filled
            raise AttributeError(name)
        return getattr(self.original, name)


def _methods(critic: Any) -> dict[str, Callable[..., Any]]:
    names = [*_JUDGING, *_OPTIONAL] if hasattr(critic, "reach") else [*_JUDGING, "judgements", "connect"]
    attributes = {name: getattr(critic, name, None) for name in names}
    return {name: method for name, method in attributes.items() if callable(method)}


def _require_call(critic: Any, method: Callable[..., Any], name: str, arguments: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # written in C, without a signature
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise CriticSpecError(
            f"critic {name_of(critic)}: {name}{signature} cannot be called as {name}({', '.join(arguments)}), as a "
            "critic is called"
        ) from None


class _NoTrajectories(tuple[Trajectory, ...]):
    """An empty batch, which notices that it is taken for a single trajectory."""

    def __getattr__(self, name: str) -> Any:
        if hasattr(Trajectory, name):
            raise _TakenForATrajectory(name)
        raise AttributeError(f"a batch of trajectories has no attribute {quoted(name)}")


class _TakenForATrajectory(BaseException):
    """Not an `Exception`, so that the critic's own error handling does not hide it."""


def _try_without_trajectories(method: Callable[..., Any], name: str) -> None:
    """Call a sync method with no trajectories, which costs no call of a model, and check what it returns.

    A method that cannot be called without trajectories passes: a run never does that.

    Raises:
        CriticSpecError: the answer has another form than `[N]` numbers, or the method takes a single trajectory.
    """
    if _is_async(method):
        return
    try:
        answer = method(_NoTrajectories())
    except _TakenForATrajectory as error:
        raise CriticSpecError(
            f"critic {name} reads `{error}` of its argument, so it takes a single trajectory: expected a function of a "
            "sequence of N trajectories that returns N numbers, such as [... for trajectory in trajectories]"
        ) from None
    except Exception:
        return
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        return
    try:
        checked_values(answer, 0, name)
    except CriticError as error:
        raise CriticSpecError(
            f"{error} (called with 0 trajectories where the graph is built): expected N numbers for N trajectories"
        ) from None


def _is_async(method: Any) -> bool:
    while isinstance(method, partial | partialmethod):
        method = method.func
    called = method if inspect.isroutine(method) else getattr(type(method), "__call__", method)  # noqa: B004
    return inspect.iscoroutinefunction(called)


async def _in_thread(method: Callable[..., Any], *arguments: Any) -> Any:
    answer = await in_new_thread(method, *arguments)
    return await answer if inspect.isawaitable(answer) else answer
