"""Store imported runs: redact their texts, know which runs a dataset contains, and join outcomes that arrive later.

The shards are the only record of what was imported, so that a killed import leaves nothing to repair.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from amc_agents.errors import ConfigurationError
from amc_agents.operations.importing.logged_runs import digest, outcome_in
from amc_agents.training.dataset import LoggedTrajectory, rewrite_shard, shard_rows, shards
from amc_agents.types import Task, Trajectory


def personal_data(texts: Iterable[str]) -> set[str]:
    """Return the kinds of personal data that texts seem to contain.

    >>> sorted(personal_data(["Write to ann@example.org or call +49 30 1234567.", "Order 12345"]))
    ['e-mail address', 'telephone number']
    """
    # No pattern goes on in another line.
    return set(_kinds_in("\n".join(texts)))


def texts_of(trajectory: Trajectory) -> Iterator[str]:
    """Yield all texts of a trajectory."""
    yield trajectory.task.instruction
    for step in trajectory.steps:
        yield from (step.thought, step.action, step.observation)


def _kinds_in(text: str) -> Iterator[str]:
    # Where every digit is a 0 and every capital an A, a search begins with a letter, which is five times as fast.
    shape = text.encode("latin-1", "replace").translate(_SHAPE)
    if _EMAIL.search(text):
        yield "e-mail address"
    if _TELEPHONE.search(text):
        yield "telephone number"
    if _CARD_SHAPE.search(shape) and any(_passes_luhn(re.sub(r"\D", "", match[0])) for match in _CARD.finditer(text)):
        yield "card number"
    if _IBAN_SHAPE in shape and _IBAN.search(text):
        yield "bank account (IBAN)"
    if any(key.search(text) for key in _KEYS):
        yield "API key"


def _passes_luhn(digits: str) -> bool:
    """Return whether the check digit of a card number is right.

    >>> _passes_luhn("4111111111111111"), _passes_luhn("4111111111111112")
    (True, False)
    """
    doubled = [int(digit) * (2 if place % 2 else 1) for place, digit in enumerate(reversed(digits))]
    return sum(number - 9 if number > 9 else number for number in doubled) % 10 == 0


# Each begins with what is rare in a text and looks back from there: a search that begins with an assertion is slow.
_EMAIL = re.compile(r"@(?<=[\w.+-]@)[\w-]{1,63}\.[\w.-]{2,}")
_TELEPHONE = re.compile(r"\+\d{1,3}[ ()/.-]{0,2}\d(?:[ ()/.-]?\d){6,12}\b")
_CARD = re.compile(r"[0-9](?<![0-9]{2})(?:[ -]?[0-9]){12,18}(?![0-9])")
_KEYS = [  # of providers whose keys have a form of their own
    re.compile(rf"{begin}(?<!\w{begin}){rest}")
    for begin, rest in (
        ("sk-", r"[\w-]{20,200}"),
        ("gh[oprsu]_", r"\w{30,255}"),
        ("hf_", r"\w{30,60}"),
        ("AKIA", r"[0-9A-Z]{16}"),
        ("AIza", r"[\w-]{35}"),
        ("xox[abprs]-", r"[\w-]{10,200}"),
    )
]
_SHAPE = bytes.maketrans(string.ascii_uppercase.encode() + string.digits.encode(), b"A" * 26 + b"0" * 10)
_CARD_SHAPE, _IBAN_SHAPE = re.compile(rb"0(?:[ -]?0){12}"), b"AA00"
_IBAN = re.compile(r"[A-Z][A-Z][0-9]{2}(?<!\w.{4})(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,4})?\b")


Redact = Callable[[str], str]
"""Text -> text without personal data."""


def redacted(trajectory: Trajectory, redact: Redact | None, where: str) -> Trajectory:
    """Redact every text of a trajectory, and make it valid Unicode, which a dataset requires.

    Raises:
        ConfigurationError: the function failed or does not return text. Nothing of the trajectory is written.
    """
    if redact is None and _is_valid("".join((trajectory.task.id, *texts_of(trajectory)))):
        return trajectory

    def clean(text: str) -> str:
        return _valid(text if redact is None else _checked(redact, text, where))

    task = trajectory.task
    steps = tuple(
        replace(
            step, action=clean(step.action), observation=clean(step.observation), thought=clean(step.thought)
        )
        for step in trajectory.steps
    )  # fmt: skip
    return replace(trajectory, task=Task(clean(task.id), clean(task.instruction)), steps=steps)


def stored_id(name: str, redact: Redact | None) -> str:
    """Return the id under which a conversation is stored: a fingerprint if the id itself contains personal data."""
    if redact is not None and _checked(redact, name, "an id") != name:
        return f"redacted-{digest(name)}"
    return _valid(name)


def _checked(redact: Redact, text: str, where: str) -> str:
    try:
        answer = redact(text)
    except Exception as error:
        # The error's own text may quote the conversation.
        raise ConfigurationError(f"{where}: the redaction function failed ({type(error).__name__}): fix it") from error
    if not isinstance(answer, str):
        raise ConfigurationError(f"{where}: the redaction function returned {type(answer).__name__}: expected text")
    return answer


def _valid(text: str) -> str:
    """Replace lone surrogates, which logs contain where a text was cut within a character."""
    return text if _is_valid(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _is_valid(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ImportedFrom:
    """The origin of an imported trajectory; the `settings` of its row."""

    kind: str
    thread: str
    turn: int
    run_id: str
    version: str
    """Version of the conversation when the run was imported."""
    text: str
    """Fingerprint of the trajectory before redaction."""
    joined: bool = False
    """Whether the outcome comes from a table, which takes precedence over the logs."""
    trial: str = ""
    """As in `Origin`; so are the times and the amounts."""
    started: str = ""
    ended: str = ""
    tokens: float | None = None
    cost: float | None = None
    commit_tools: tuple[str, ...] = ()
    """Names of the agent's commit tools, as in `LoggedTrajectory.commit_tools`."""

    @property
    def key(self) -> bytes:
        """Identify the run."""
        return run_key(self.thread, self.turn, self.run_id)

    def to_settings(self) -> str:
        """Serialize for the column `settings`."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "commit_tools"}
        tools = {"commit_tools": list(self.commit_tools)} if self.commit_tools else {}
        return json.dumps({"imported": fields, **tools}, sort_keys=True)

    @classmethod
    def of_settings(cls, settings: str) -> ImportedFrom | None:
        """Read the column `settings`; None: the trajectory was not imported."""
        plain = json.loads(settings)
        fields = plain.get("imported")
        return None if fields is None else cls(**fields, commit_tools=tuple(plain.get("commit_tools", ())))


class StoredRun(NamedTuple):
    """What the import must know about a run of the dataset."""

    text: str
    outcome: float
    """NaN: unknown."""
    joined: bool
    new: bool = False
    """Whether this import has added it."""


def run_key(thread: str, turn: int, run_id: str = "") -> bytes:
    """Identify a run of a dataset in 16 bytes: by its own id, if it has one."""
    name = f"run {run_id}" if run_id else f"{turn} {thread}"
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class StoredRuns:
    """The runs of a dataset, read from its shards. Takes some 300 bytes of memory per trajectory.

    Args:
        folder: the dataset's; it may be missing.
    """

    def __init__(self, folder: Path) -> None:
        self.runs: dict[bytes, StoredRun] = {}
        self.groups: Counter[str] = Counter()
        """Number of trajectories of each task."""
        self._versions: set[bytes] = set()
        for shard in shards(folder):
            for _, row in shard_rows(shard, _SMALL):
                self.groups[row["task_id"]] += 1
                origin = ImportedFrom.of_settings(row["settings"])
                if origin is not None:
                    outcome = math.nan if row["return"] is None else row["return"]
                    self.runs[origin.key] = StoredRun(origin.text, outcome, origin.joined)
                    self._versions.add(_version_key(origin.thread, origin.version))

    def has_version(self, thread: str, version: str) -> bool:
        """Return whether a run of the conversation was imported from this version of it, which ended with that run."""
        return _version_key(thread, version) in self._versions

    def add(self, origin: ImportedFrom, outcome: float, task: str) -> int:
        """Record a new run, and return its index among the trajectories of its task."""
        self.runs[origin.key] = StoredRun(origin.text, outcome, origin.joined, new=True)
        group = self.groups[task]
        self.groups[task] += 1
        return group


class OutcomeUpdate(NamedTuple):
    """What became of outcomes that arrived after their runs."""

    changes: int
    """Trajectories whose outcome arrived or changed."""
    unmatched: int
    """Ids in the table that belong to no run of the dataset."""


def update_outcomes(folder: Path, from_logs: Mapping[bytes, float], table: Mapping[str, float]) -> OutcomeUpdate:
    """Change the outcomes of stored runs; only the shards that contain them are rewritten.

    Args:
        folder: the dataset's.
        from_logs: run -> its outcome; without the runs whose outcome comes from a table.
        table: thread or run id -> outcome.

    Raises:
        StorageError: a shard cannot be written.
    """
    changes = 0
    unmatched = set(table)
    for shard in shards(folder) if from_logs or table else ():
        # The large columns are read only for shards that change.
        updates = []
        for _, row in shard_rows(shard, _SMALL):
            origin = ImportedFrom.of_settings(row["settings"])
            updates.append(None if origin is None else _update(origin, row["return"], from_logs, table))
            unmatched -= set() if origin is None else {origin.thread, origin.run_id}
        if any(updates):
            rewrite_shard(shard, updates)
            changes += sum(update is not None for update in updates)
    return OutcomeUpdate(changes, len(unmatched))


def with_outcome(trajectory: Trajectory, outcome: float) -> Trajectory:
    """Return a trajectory whose outcome is the reward of its last step; NaN: the outcome is unknown."""
    last = replace(trajectory.steps[-1], reward=outcome)
    return replace(trajectory, steps=(*trajectory.steps[:-1], last))


def _update(
    origin: ImportedFrom, stored: float | None, from_logs: Mapping[bytes, float], table: Mapping[str, float]
) -> Callable[[LoggedTrajectory], LoggedTrajectory] | None:
    """Return the change of a stored run; None: it stays as it is."""
    in_table = outcome_in(table, thread=origin.thread, run_id=origin.run_id, known=stored is not None)
    outcome = from_logs.get(origin.key) if in_table is None else in_table
    joined = in_table is not None
    if outcome is None or (outcome == stored and joined == origin.joined):
        return None
    settings = replace(origin, joined=joined).to_settings()
    return lambda record: replace(record, trajectory=with_outcome(record.trajectory, outcome), settings=settings)


def _version_key(thread: str, version: str) -> bytes:
    return run_key(f"{version} of {thread}", -1)


_SMALL: Any = ("settings", "task_id", "return")
