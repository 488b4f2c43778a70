"""Your own objects and functions as critics, and the strict reading of every critic's answer.

Objects are checked when they are passed, and called in a thread if they are sync. Failures and invalid answers become
`CriticError`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import partial, partialmethod
from numbers import Real
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from amc_agents.concurrency.background import in_new_thread
from amc_agents.concurrency.gather import was_cancelled
from amc_agents.errors import (
    BudgetExhausted,
    CheckpointError,
    ConfigurationError,
    CriticError,
    CriticSpecError,
    DecisionError,
    MissingExtra,
)
from amc_agents.quoting import cause_of, excerpt, quoted
from amc_agents.types import Critic, FloatArray, Trajectory


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


_MOST_QUOTED = 300
"""Characters of another library's error that a message repeats."""


@contextmanager
def failing_as_critic_error(who: str) -> Iterator[None]:
    """Raise any exception of the block as a `CriticError`, which `on_critic_error="uniform"` may ignore.

    These exceptions pass unchanged: a wrong setting (`ConfigurationError`), a model other than the checkpoint's
    (`CheckpointError`) and a missing package (`MissingExtra`), because a later call would fail in the same way; and an
    answer in words that cannot be read (`DecisionError`).

    Args:
        who: the beginning of the message, such as "critic Mine".
    """
    try:
        yield
    except asyncio.CancelledError as error:
        if was_cancelled():
            raise
        if isinstance(error.__cause__, BudgetExhausted | ConfigurationError):
            raise error.__cause__ from None
        raise CriticError(f"{who} failed: it raised CancelledError, and nobody cancelled the run") from error
    except (CriticError, ConfigurationError, CheckpointError, MissingExtra, DecisionError, BudgetExhausted):
        raise
    except Exception as error:
        detail = excerpt(str(error), _MOST_QUOTED)
        raise CriticError(f"{who} failed: {type(error).__name__}: {detail}") from cause_of(error)


def real_numbers(values: Any) -> FloatArray:
    """Convert real numbers to float64, in any shape.

    NumPy would read the text "0.5" as a number, drop an imaginary part, and ignore a mask.

    Raises:
        ValueError: something else is among them; the message names it.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        raise ValueError("a masked array with masked entries: fill or drop them")
    if getattr(values, "requires_grad", False):
        raise ValueError(f"a {type(values).__name__} with requires_grad: detach it")
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O":
            wrong = [type(entry).__name__ for entry in array.flat if not isinstance(entry, Real | Decimal)]
            if wrong:
                raise ValueError(type(values).__name__ + (f" with {wrong[0]}" if array.shape else ""))
        elif array.dtype.kind not in "biuf":
            raise ValueError(f"{type(values).__name__} of {array.dtype.type.__name__.rstrip('_')}")
        return array.astype(np.float64)
    except (TypeError, OverflowError, RuntimeError) as error:  # RuntimeError: of a list of PyTorch's tensors
        raise ValueError(f"{type(values).__name__} ({excerpt(str(error), 100)})") from error


def real_number(value: Any) -> float:
    """Convert a single real number. Raises `ValueError` for anything else, naming it."""
    number = real_numbers(value)
    if number.shape:
        raise ValueError(f"an array of shape {list(number.shape)}")
    return float(number)


def checked_values(values: Any, n: int, critic: str) -> FloatArray:
    """Convert a critic's answer to float64, `[N]`.

    Args:
        values: the critic's answer.
        n: number of trajectories (or actions, or goals) that the critic was called with.
        critic: its name, for the message.

    Raises:
        CriticError: the answer is not `[N]` finite numbers.
    """
    try:
        array = real_numbers(values)
    except ValueError as error:
        raise CriticError(f"critic {critic} answered {error}, expected [{n}] numbers") from error
    if array.shape != (n,):
        raise CriticError(f"critic {critic} answered values of shape {list(array.shape)}, expected [{n}]")
    if not np.all(np.isfinite(array)):
        wrong = np.flatnonzero(~np.isfinite(array))
        raise CriticError(
            f"critic {critic} answered {array[wrong[0]]} for trajectory {wrong[0]} ({len(wrong)} of {n}), expected "
            "finite numbers: check its model"
        )
    return array
