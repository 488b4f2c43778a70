"""Outcomes of logged runs: read from the logs, computed by a function, or joined from a table."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.operations.importing.records import field_of, number_of
from amc_agents.operations.importing.runs import LoggedRun, UnreadableRecord
from amc_agents.quoting import quoted

OutcomeFunction = Callable[[LoggedRun], float | None]
"""Computes the outcome of a run; None: it is not known yet."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Where the outcomes of runs come from. A run without an outcome is kept and marked, never counted as a 0.

    Without settings, the reward counts that the form of a benchmark's record has itself.
    """

    reward: str | None = None
    """Field of the source's record: a name, or names joined by dots. Of a checkpointer: a field of the agent's state;
    of spans: an attribute."""
    feedback: str | None = None
    """Name of a feedback score in LangSmith runs, or of an evaluation in spans; the mean of several."""
    function: OutcomeFunction | None = None
    """Computes the outcome."""
    table: str | Path | None = None
    """CSV file with the columns `thread_id` and `value`. It takes precedence over the other settings, and also updates
    runs that were imported before."""

    def __post_init__(self) -> None:
        """Refuse two sources in the logs."""
        given = [name for name in ("reward", "feedback", "function") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigurationError(f"outcomes come from {' and from '.join(given)}: choose one of them")

    def one_for(self, record: Mapping[str, Any]) -> bool:
        """Return whether the whole conversation of a record has one outcome."""
        return self.table is not None or (self.reward is not None and field_of(record, self.reward) is not None)

    def of(self, run: LoggedRun) -> float | None:
        """Return the outcome that the logs give a run; None: unknown.

        Raises:
            UnreadableRecord: it is not a number.
            ConfigurationError: this kind of source has no feedback, or the function failed.
        """
        if self.reward is not None:
            return number_of(field_of(run.origin.record, self.reward), self.reward)
        if self.feedback is not None:
            return self._feedback(run, self.feedback)
        if self.function is None:
            return number_of(run.origin.outcome, "reward")
        try:
            value = self.function(run)
        except Exception as error:
            raise ConfigurationError(
                f"{run.origin.where}: the reward function failed ({type(error).__name__}: {error}); "
                "let it return None where the outcome is unknown"
            ) from error
        return number_of(value, "of the reward function")

    @staticmethod
    def _feedback(run: LoggedRun, name: str) -> float | None:
        if run.origin.feedback is None:
            raise ConfigurationError(
                f"feedback {quoted(name)} was asked for, but only LangSmith runs and spans have feedback: use a field "
                "(--reward), a table (--outcomes) or a function (--reward-function)"
            )
        return number_of(run.origin.feedback.get(name), name)


def read_outcomes(table: str | Path) -> dict[str, float]:
    """Read a CSV file with the columns `thread_id` and `value`, in any order and among others; the last row counts.

    `thread_id` may also name a single run (such as a LangSmith run). `value` is a number, true or false; rows without
    a value are skipped.

    Raises:
        CheckpointError: the file cannot be read, or a row has another form; the message names the line.
    """
    outcomes: dict[str, float] = {}
    try:
        with Path(table).open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            missing = {"thread_id", "value"} - set(rows.fieldnames or ())
            if missing:
                raise CheckpointError(
                    f"{table} lacks the column {' and '.join(sorted(missing))}: expected a first line `thread_id,value`"
                )
            for row in rows:
                thread, value = row["thread_id"], (row["value"] or "").strip()
                if thread and value:
                    outcomes[thread] = _number(value, f"{table} line {rows.line_num}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CheckpointError(f"{table} cannot be read ({error}): expected a CSV file in UTF-8") from error
    return outcomes


def outcome_in(table: Mapping[str, float], *, thread: str, run_id: str) -> float | None:
    """Return the outcome of a run in a table: its own, otherwise its conversation's."""
    return table.get(run_id, table.get(thread)) if run_id else table.get(thread)


def _number(text: str, where: str) -> float:
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        number = number_of(float(text), "value")
    except (ValueError, UnreadableRecord):
        number = None
    if number is None:
        raise CheckpointError(f"{where}: expected a finite number, true or false in `value`, got {quoted(text, 40)}")
    return number
