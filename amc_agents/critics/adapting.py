"""Objects and functions of yours as critics: tested where they are given, asked in a thread where they are sync."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial, partialmethod
from types import MappingProxyType
from typing import Any, Protocol

from amc_agents.concurrency.threads import DaemonThreads
from amc_agents.critics.validation import failing_as_critic_error
from amc_agents.errors import CriticError, CriticSpecError
from amc_agents.types import Critic, Trajectory


class SyncCritic(Protocol):
    """A critic without `async`: it is asked in a thread, so that the event loop goes on."""

    def values(self, trajectories: Sequence[Trajectory]) -> Any:
        """`[N]` as `Critic.values`."""
        ...


CriticFunction = Callable[[Sequence[Trajectory]], Any]
"""`[N]` values of trajectories, or an awaitable of them: the method `values` of a critic by itself."""
CriticLike = Critic | SyncCritic | CriticFunction
"""What is accepted as a critic besides its string."""

_JUDGING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "values": ("trajectories",),
        "log_odds": ("trajectories",),
        "q_values": ("trajectory", "actions"),
        "reach": ("trajectory", "thought", "goals"),
    }
)
"""Methods that make a critic -> what each is called with."""
_FURTHER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"judgements": ("trajectories",), "connect": (), "prepare": ("trajectory",)}
)
"""Methods that a critic may have besides."""
_EXPECTED = (
    "expected a critic or its string: an object with `values` (or `log_odds`, `q_values`, `reach`), or a function of "
    "trajectories"
)


def adapted(critic: Any) -> Any:
    """A critic whose methods are async, made of an object or a function; one that is async already is given back.

    Raises:
        CriticSpecError: it has none of a critic's methods, or one that cannot be called as a critic's is.
    """
    if isinstance(critic, type):
        raise CriticSpecError(f"{_EXPECTED}; got the class {critic.__name__}: pass an instance, {critic.__name__}(...)")
    methods = {} if isinstance(critic, Mapping) else _methods(critic)  # a mapping has a method `values`, too
    if not methods and callable(critic):
        _require_call(critic, critic, name_of(critic), _JUDGING["values"])
        return _Adapted(critic, {"values": critic})
    if not methods.keys() & _JUDGING.keys():
        raise CriticSpecError(f"{_EXPECTED}; got {type(critic).__name__}")
    for name, method in methods.items():
        _require_call(critic, method, f"{name_of(critic)}.{name}", {**_JUDGING, **_FURTHER}[name])
    predicts = inspect.getattr_static(critic, "predicts", "future")
    if isinstance(predicts, str) and predicts not in ("future", "return"):
        raise CriticSpecError(
            f"critic {name_of(critic)} says predicts={predicts!r}: expected 'future', the return still to come, or "
            "'return', the whole return"
        )
    return critic if all(map(_is_async, methods.values())) else _Adapted(critic, methods)


def original(critic: Any) -> Any:
    """What `adapted` was given."""
    while isinstance(critic, _Adapted):
        critic = critic.original
    return critic


def name_of(critic: Any) -> str:
    """What messages call a critic: the name of a function, else that of the class."""
    given = original(critic)
    return str(getattr(given, "__name__", type(given).__name__))


async def connect(critic: Any) -> None:
    """Let a critic find its server before anything is spent on a run: by its method `connect`, where it has one.

    Raises:
        CriticError: it could not; a wrong setting and another model than the checkpoint's go through as they are.
    """
    connecting: Callable[[], Awaitable[Any]] | None = getattr(critic, "connect", None)
    if connecting is None:
        return
    with failing_as_critic_error(f"critic {name_of(critic)}: connect()"):
        await connecting()


def failing(critic: Any, error: CriticError) -> Any:
    """Stands in for a critic that could not be connected: whatever it is asked fails as that did, without delay."""

    async def fail(*_: Any) -> Any:
        raise error

    return _Adapted(critic, {name: fail for name in (*_JUDGING, "judgements") if hasattr(critic, name)})


class _Adapted:
    """A critic with async methods in place of sync ones; everything else is the original's."""

    def __init__(self, critic: Any, methods: Mapping[str, Callable[..., Any]]) -> None:
        self.original = critic
        for name, method in methods.items():
            # Of this object, not by `__getattr__`: protocols look for methods without asking for attributes.
            vars(self)[name] = method if _is_async(method) else partial(_in_thread, method)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "original":  # what copying asks of an object that is not filled yet
            raise AttributeError(name)
        return getattr(self.original, name)


def _methods(critic: Any) -> dict[str, Callable[..., Any]]:
    names = [*_JUDGING, *_FURTHER] if hasattr(critic, "reach") else [*_JUDGING, "judgements", "connect"]
    found = {name: getattr(critic, name, None) for name in names}
    return {name: method for name, method in found.items() if callable(method)}


def _require_call(critic: Any, method: Callable[..., Any], name: str, arguments: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # written in C, without a signature
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise CriticSpecError(
            f"critic {name_of(critic)}: {name}{signature} cannot be called as {name}({', '.join(arguments)}), which is "
            "how a critic is asked"
        ) from None


def _is_async(method: Any) -> bool:
    while isinstance(method, partial | partialmethod):
        method = method.func
    called = method if inspect.isroutine(method) else getattr(type(method), "__call__", method)  # noqa: B004
    return inspect.iscoroutinefunction(called)


async def _in_thread(method: Callable[..., Any], *arguments: Any) -> Any:
    # A thread of its own: those of the loop may all be waiting for this answer (sync nodes that ask a deciding model).
    # What is recorded there is counted by the meter in use here.
    threads = DaemonThreads(1, "amc-critic")
    try:
        call = partial(copy_context().run, method, *arguments)
        answer = await asyncio.get_running_loop().run_in_executor(threads, call)
    finally:
        threads.shutdown(wait=False)
    return await answer if inspect.isawaitable(answer) else answer
