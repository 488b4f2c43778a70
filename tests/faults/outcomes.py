"""The table: fault x method -> outcome. `docs/reliability.md` shows it, and a test compares the two."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from tests.faults.surfaces import Limits
from tests.faults.wire import (
    ABSURD,
    FOREVER,
    GZIP,
    LATE,
    LOST,
    REFUSED,
    SLOW,
    TOO_MANY,
    UNAVAILABLE,
    UNREADABLE,
    WRONG_TYPE,
    Connection,
    Fault,
    changed,
)

RETRIED = "retried"
WAITED = "waited for"
DEGRADED = "degraded"
SERVER = "refused: CriticServerError"
CRITIC = "refused: CriticError"
ROLE = "refused: RoleError"
UPDATE = "refused: UpdateError"
LOST_ONE = "particle lost"
LOST_ALL = "refused: QuorumLost"


@dataclass(frozen=True)
class Family:
    """Faults with the same outcome."""

    name: str
    faults: tuple[Fault, ...]


FAMILIES = (
    Family("late", LATE),
    Family("connection lost", LOST),
    Family("no answer in time", SLOW),
    Family("server unavailable", UNAVAILABLE),
    Family("too many requests", TOO_MANY),
    Family("absurd Retry-After", ABSURD),
    Family("refused", REFUSED),
    Family("not JSON", UNREADABLE),
    Family("gzip bomb", GZIP),
    Family("JSON of another shape", WRONG_TYPE),
)


@dataclass(frozen=True)
class Case:
    """A fault in front of a method."""

    surface: str
    fault: Fault
    times: int
    """Number of broken requests in a row."""
    on_error: str
    outcome: str
    repeated: bool = False
    """The client repeats a broken request, which then counts as one."""

    @property
    def limits(self) -> Limits:
        """A time limit that only a server that hangs exceeds, and retries unless every request is broken."""
        timeout = 0.2 if self.fault.patience else 30.0
        return Limits(timeout, 0.0 if self.times == FOREVER else 30.0)

    def __str__(self) -> str:
        often = "always" if self.times == FOREVER else "once"
        return f"{self.surface}-{self.fault.name}-{often}-{self.on_error}"


@dataclass(frozen=True)
class Kind:
    """Methods that ask a server in the same way, and what a family of faults does to them."""

    name: str
    surfaces: tuple[str, ...]
    once: dict[str, str]
    """Family -> the outcome when one request is broken and the next is not."""
    always: dict[str, str]
    """Family -> the outcome when every request is broken."""
    further: tuple[tuple[Fault, str], ...] = ()
    """Faults of this kind of server alone, and their outcome."""

    def outcome(self, family: Family, times: int, on_error: str) -> str:
        """The outcome of a row of the table."""
        if family.faults == LATE:
            return WAITED
        raised = (self.always if times == FOREVER else self.once)[family.name]
        return DEGRADED if on_error == "uniform" and raised.startswith("refused") else raised


def _rows(change: Any) -> Any:
    """Change the rows of an answer's list, whatever it is called."""

    def changing(answer: Any) -> Any:
        name = "data" if "data" in answer else "choices"
        return {**answer, name: change(answer[name])}

    return changed(changing)


def _replaced(old: str, new: str) -> Any:
    """Replace a part of the answer's JSON text by a regular expression."""

    async def send(connection: Connection, right: Any) -> None:
        await connection.answer(re.sub(old, new, json.dumps(right)).encode())

    return send


ROWS = (
    Fault("no rows", _rows(lambda rows: [])),
    Fault("a row is missing", _rows(lambda rows: rows[:-1])),
    Fault("a row too many", _rows(lambda rows: [*rows, rows[-1]])),
    Fault("rows are null", _rows(lambda rows: None)),
    Fault("rows without fields", _rows(lambda rows: [{"index": row["index"]} for row in rows])),
    Fault("rows without an index", _rows(lambda rows: [{**row, "index": None} for row in rows])),
    Fault("an index beyond the rows", _rows(lambda rows: [{**row, "index": row["index"] + 1} for row in rows])),
)
_NUMBER = r'((?:probs|embedding)": \[|token_id:\d+": |"logprob": )-?[\d.]+'
NUMBERS = tuple(
    Fault(f"a number is {wrong}", _replaced(_NUMBER, rf"\g<1>{wrong}"))
    for wrong in ("NaN", "Infinity", "null", "true", '"0.5"', "1e999", "[0.5]")
)

_NOT_FINITE = ("a number is NaN", "a number is Infinity", "a number is 1e999")
_EVERY = {family.name: SERVER for family in FAMILIES}
_RETRIED = ("connection lost", "no answer in time", "server unavailable", "too many requests")
SHAPE = "JSON of another shape"

KINDS = (
    Kind(
        "model server, rows",
        ("AMC, `classify:`", "PNLC, embeddings", "train goal, embeddings"),
        once=_EVERY | dict.fromkeys(_RETRIED, RETRIED) | {SHAPE: CRITIC},
        always=_EVERY | {SHAPE: CRITIC},
        further=tuple((fault, CRITIC) for fault in ROWS + NUMBERS),
    ),
    Kind(
        "model server, rows with a control prompt",
        ("AMC, `vllm:`", "bench, `vllm:`", "tune, `vllm:`", "score, `vllm:`"),
        once=_EVERY | dict.fromkeys(_RETRIED, RETRIED) | {SHAPE: CRITIC},
        always=_EVERY | {SHAPE: CRITIC},
        # The control prompt's number differs too, so the handshake is repeated, and then the request.
        further=tuple((fault, CRITIC) for fault in ROWS + NUMBERS if fault.name not in _NOT_FINITE)
        + tuple((fault, RETRIED) for fault in NUMBERS if fault.name in _NOT_FINITE),
    ),
    Kind(
        "model server, logits",
        ("LAC, `verdict:` (logits)",),
        once=_EVERY | dict.fromkeys(_RETRIED, RETRIED),
        always=_EVERY,
        further=tuple((fault, SERVER) for fault in ROWS + NUMBERS),
    ),
    Kind(
        "chat model as a critic",
        ("AMC, `judge:`", "LAC, `verdict:` (top k)"),
        once=dict.fromkeys(_EVERY, CRITIC) | {"too many requests": RETRIED},
        always=dict.fromkeys(_EVERY, CRITIC),
    ),
    Kind(
        "chat model as a forward model",
        ("LAC, imagination", "PNLC, goals"),
        once=dict.fromkeys(_EVERY, CRITIC) | {"too many requests": RETRIED},
        always=dict.fromkeys(_EVERY, CRITIC),
    ),
    Kind(
        "policy of particles",
        ("AMC, policy", "collect, policy"),
        once=dict.fromkeys(_EVERY, LOST_ONE) | {"too many requests": RETRIED},
        always=dict.fromkeys(_EVERY, LOST_ALL),
    ),
    Kind(
        "world server",
        ("AMC, world server",),
        once=dict.fromkeys(_EVERY, LOST_ONE),
        always=dict.fromkeys(_EVERY, LOST_ALL),
    ),
    Kind(
        "updater of PSRL",
        ("PSRL, roles",),
        once=dict.fromkeys(_EVERY, UPDATE) | {"too many requests": RETRIED},
        always=dict.fromkeys(_EVERY, UPDATE),
    ),
    Kind(
        "estimators of IDS",
        ("IDS, estimators",),
        once=dict.fromkeys(_EVERY, ROLE) | {"too many requests": RETRIED},
        always=dict.fromkeys(_EVERY, ROLE),
    ),
)


def cases() -> Iterator[Case]:
    """The matrix: every fault once in front of one method of each kind, the first of each family everywhere.

    The first of each family is also tried for ever, and where a critic's failure is allowed.
    """
    for kind in KINDS:
        for surface in kind.surfaces:
            whole = surface in WHOLE
            errors = ("raise", "uniform") if surface in MAY_FAIL else ("raise",)
            for family in FAMILIES:
                for number, fault in enumerate(family.faults):
                    for times, on_error in product((1, FOREVER), errors):
                        if number == 0 or (whole and (times, on_error) == (1, "raise")):
                            outcome = kind.outcome(family, times, on_error)
                            yield Case(surface, fault, times, on_error, outcome, family.name in _RETRIED)
            for (fault, outcome), on_error in product(kind.further if whole else (), errors):
                if on_error == "raise" or fault in (ROWS[0], NUMBERS[0]):
                    degraded = on_error == "uniform" and outcome.startswith("refused")
                    yield Case(surface, fault, 1, on_error, DEGRADED if degraded else outcome)


WHOLE = (
    "AMC, `vllm:`", "AMC, `classify:`", "AMC, `judge:`", "AMC, policy", "LAC, `verdict:` (logits)", "PNLC, embeddings",
)  # fmt: skip
"""Methods in front of which every fault is tried."""
NO_CHOICE = ("bench", "tune", "score", "train")
MAY_FAIL = tuple(name for kind in KINDS[:5] for name in kind.surfaces if not name.startswith(NO_CHOICE))
"""Methods with a critic, where `on_critic_error` may be "uniform"."""
