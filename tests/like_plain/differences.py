"""What a caller can observe of an agent, compared; and the differences that are known, each with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from tests.like_plain.play import Case, Played


def differences(plain: Played, wrapped: Played, particles: int) -> dict[str, str]:
    """Return aspect -> where it differs first.

    What the agent did may happen once per particle, but for what is marked as happening once; a checkpointer keeps no
    state that the plain agent's does not.
    """
    found = {}
    for aspect in ("results", "states", "stored"):
        if getattr(plain, aspect) != getattr(wrapped, aspect):
            found[aspect] = first_difference(getattr(plain, aspect), getattr(wrapped, aspect))
    unknown = [values for values in wrapped.history if values not in plain.history]
    if unknown or wrapped.history[:1] != plain.history[:1]:
        found["history"] = f"newest {first_difference(plain.history[:1], wrapped.history[:1])}; unknown {unknown[:1]}"
    for aspect in ("ledger", "callbacks"):
        ours, theirs = getattr(wrapped, aspect), getattr(plain, aspect)
        if particles > 1:
            theirs = {key: theirs[key] if "once" in str(key) else max(theirs[key], ours[key]) for key in theirs}
        if ours != theirs:
            found[aspect] = first_difference(dict(theirs), dict(ours))
    if particles == 1 and plain.usage != wrapped.usage:
        found["usage"] = first_difference(plain.usage, wrapped.usage)
    return found


def first_difference(plain: Any, wrapped: Any, path: str = "") -> str:
    """Return the place of the first difference of two canonical values, and both values there."""
    pairs: list[tuple[Any, Any, Any]] = []
    if isinstance(plain, dict) and isinstance(wrapped, dict):
        pairs = [(key, plain.get(key, "absent"), wrapped.get(key, "absent")) for key in {**plain, **wrapped}]
    elif isinstance(plain, (list, tuple)) and isinstance(wrapped, (list, tuple)):
        pairs = [(n, a, b) for n, (a, b) in enumerate(zip_longest(plain, wrapped, fillvalue="absent"))]
    for key, a, b in pairs:
        if a != b:
            return first_difference(a, b, f"{path}/{key}")
    return f"{path or '/'}: plain {str(plain)[:400]} | wrapped {str(wrapped)[:400]}"


@dataclass(frozen=True)
class Known:
    """A known difference.

    Args:
        aspects: what differs.
        why: why it stays, as docs/support.md says, or who removes it.
        where: the cases that may differ so.
        example: a case that does, so that the entry fails when it is no longer needed.
    """

    aspects: str
    why: str
    where: Callable[[Case], bool]
    example: Case


def case(scenario: str, call: str = "invoke", modes: str = "-", version: str = "v1", saver: str = "memory",
         place: str = "itself", durability: str = "-", particles: int = 1) -> Case:  # fmt: skip
    return Case(scenario, call, modes, version, saver, place, durability, particles)


def _of(*scenarios: str) -> Callable[[Case], bool]:
    return lambda case: case.scenario in scenarios


FAILS = (
    "model call limit that raises",
    "personal data, blocked",
    "invalid pydantic state",
    "tool error",
    "model error",
    "recursion limit of the call",
    "bound recursion limit",
)

ASKS = ("interrupt", "interrupt, resume with update", "interrupt, edited", "approval", "approval, edited",
        "approval, rejected")  # fmt: skip

KNOWN = [
    Known(
        "states history",
        "docs/support.md: after a failure, a thread keeps the state before the run and its durable points",
        _of(*FAILS),
        case("model error"),
    ),
    Known(
        "results states history ledger callbacks usage",
        "docs/support.md: LangChain's default limit of 25 supersteps is not the user's, and does not limit particles",
        lambda case: case.scenario == "bound recursion limit" and ("events" in case.call or "batch" in case.call),
        case("bound recursion limit", "events_v2"),
    ),
    Known(
        "results states history",
        "docs/support.md: without a thread id of the caller's, an agent sees its particle's",
        lambda case: case.scenario == "the thread's id" and case.saver == "none",
        case("the thread's id", saver="none"),
    ),
    Known(
        "results states history ledger callbacks usage",
        "docs/support.md: questions and commit tools are refused with durability='exit'",
        lambda case: case.scenario in (*ASKS, "commit tool") and case.durability == "exit",
        case("interrupt", durability="exit"),
    ),
    Known("ledger", "docs/support.md: particles use no cache of nodes", _of("cache policy"), case("cache policy")),
    Known(
        "results",
        "docs/support.md: messages of models within middleware are not in the answer's state",
        lambda case: (
            case.scenario in ("emulated tools", "tool selection", "summarization") and "messages" in case.modes
        ),
        case("emulated tools", "stream", "messages"),
    ),
    Known(
        "results states history ledger",
        "42, point 3: values of untracked channels",
        _of("shell"),
        case("shell", "stream", "values"),
    ),
    Known(
        "results states history ledger",
        "docs/amc.md: update_state at a question is refused; what a command adds is shown at the next step",
        _of("interrupt, resume with update", "interrupt, edited"),
        case("interrupt, edited"),
    ),
]


def unexplained(case: Case, found: dict[str, str]) -> dict[str, str]:
    """Return the differences that no known one explains."""
    known = {aspect for one in KNOWN if one.where(case) for aspect in one.aspects.split()}
    return {aspect: where for aspect, where in found.items() if aspect not in known}
