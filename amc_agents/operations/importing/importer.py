"""Import logs into a dataset, incrementally and with one shard in memory at a time; report what was imported."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import JsonLinesFile, read_json_object, replace_file, sole_user, storage_errors
from amc_agents.messages import pending_states
from amc_agents.operations.importing.logged_runs import (
    LoggedRun,
    Outcomes,
    Reading,
    Refused,
    UnreadableRecord,
    digest,
    outcome_in,
    read_outcomes,
)
from amc_agents.operations.importing.sources import Source, Turns, kind_of, read, turns_in
from amc_agents.operations.importing.storing import (
    ImportedFrom,
    Redact,
    StoredRuns,
    personal_data,
    redacted,
    stored_id,
    texts_of,
    update_outcomes,
    with_outcome,
)
from amc_agents.training.dataset import (
    LoggedTrajectory,
    commit_names,
    pyarrow_or_error,
    refuse_credentials,
    unknown_outcomes,
    write_shard,
)
from amc_agents.types import Trajectory

IMPORT_REPORT = "import-report.json"
REFUSED = "refused.jsonl"
"""One line for each refused record: where it is, and the reason."""


@dataclass(slots=True)
class ImportReport:
    """What an import did. The counts are of this import; `dataset_...` are of the whole dataset."""

    trajectories: int = 0
    """New trajectories."""
    steps: int = 0
    """Steps of the new trajectories."""
    tokens: int = 0
    """Approximate tokens of the new trajectories: four characters each."""
    outcomes_known: int = 0
    """New trajectories whose outcome is known."""
    outcomes_updated: int = 0
    """Stored trajectories whose outcome arrived or changed."""
    outcomes_unmatched: int = 0
    """Ids in the table of outcomes that belong to no run of the dataset."""
    imported_before: int = 0
    """Runs that the dataset already contains; conversations, where a checkpointer shows that they are unchanged."""
    duplicates: int = 0
    """Runs that the source contains twice."""
    unfinished: int = 0
    """Runs that have neither ended nor an outcome; a later import takes them."""
    cut_off: int = 0
    """New trajectories that stop before the agent's answer."""
    one_run_each: bool = False
    """Whether conversations were taken as one run each because their world answers as the user."""
    commit_tools: tuple[str, ...] = ()
    """Names of the commit tools that the import was given."""
    pending_commits: int = 0
    """States of the new trajectories in which a call of these tools was pending."""
    refused: int = 0
    """Records that could not be read. `refused.jsonl` in the dataset's folder lists each."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Reason -> number of refused records."""
    personal_data: Counter[str] = field(default_factory=Counter)
    """Kind -> number of new trajectories that seem to contain it, after redaction."""
    dataset_trajectories: int = 0
    dataset_tasks: int = 0
    dataset_outcomes_known: int = 0

    @property
    def outcomes_unknown(self) -> int:
        """New trajectories whose outcome is not known yet."""
        return self.trajectories - self.outcomes_known

    @property
    def read_nothing(self) -> bool:
        """Whether the source has no run, neither a new one nor one that is known or not finished."""
        return not (self.trajectories or self.imported_before or self.duplicates or self.unfinished)

    def notes(self) -> list[str]:
        """Return what the user should know, as sentences."""
        notes = [f"Refused: {count:,} x {reason}" for reason, count in self.reasons.most_common(_SHOWN)]
        if self.one_run_each:
            notes.insert(
                0,
                "The world answers as the user here, so each conversation is one run: with --turns each, every answer "
                "to a user would be a run of its own",
            )
        if len(self.reasons) > _SHOWN:
            notes.append(f"and {len(self.reasons) - _SHOWN} other reasons")
        notes += [
            f"{count:,} new trajectories seem to contain {_article(kind)} {kind}: consider --redact MODULE:NAME"
            for kind, count in sorted(self.personal_data.items())
        ]
        if self.outcomes_unmatched:
            notes.append(
                f"{self.outcomes_unmatched:,} ids in the table of outcomes match no imported run: expected thread ids"
            )
        if self.commit_tools and self.trajectories and not self.pending_commits:
            notes.append(
                f"No new trajectory calls {', '.join(self.commit_tools)}: check the names of the commit tools, as the "
                "model writes them in its calls"
            )
        if self.dataset_trajectories and not self.dataset_outcomes_known:
            notes.append(
                "No outcome is known, so no value model can be trained yet: give --reward, --feedback, --outcomes or "
                "--reward-function"
            )
        return notes

    def counts(self) -> list[tuple[str, int]]:
        """Return (label, number) of what an import counts, without the zeros."""
        labelled = (
            ("new trajectories", self.trajectories),
            ("steps", self.steps),
            ("tokens, about", self.tokens),
            ("with a known outcome", self.outcomes_known),
            ("without an outcome yet", self.outcomes_unknown),
            ("cut off before an answer", self.cut_off),
            ("pending calls of commit tools", self.pending_commits),
            ("outcomes updated", self.outcomes_updated),
            ("imported before", self.imported_before),
            ("duplicates in the source", self.duplicates),
            ("not finished yet", self.unfinished),
            ("refused", self.refused),
        )
        return [(label, n) for label, n in labelled if n or label == "new trajectories"]

    @classmethod
    def load(cls, folder: Path) -> ImportReport:
        """Read what `save` wrote.

        Raises:
            CheckpointError: the file cannot be read, or is not the report of an import.
        """
        path, remedy = folder / IMPORT_REPORT, "delete the file, or import again"
        content = read_json_object(path, remedy=remedy)
        try:
            report = cls(**content)
        except TypeError as error:
            raise CheckpointError(f"{path} is not the report of an import ({error}): {remedy}") from error
        report.reasons, report.personal_data = Counter(report.reasons), Counter(report.personal_data)
        return report

    def save(self, folder: Path) -> None:
        """Write `import-report.json` to the dataset's folder, atomically."""
        replace_file(
            folder / IMPORT_REPORT,
            json.dumps({each.name: getattr(self, each.name) for each in fields(self)}, indent=1),
        )


def _article(kind: str) -> str:
    return "an" if kind[0] in "aeiouA" else "a"


_SHOWN = 5
"""Reasons that `notes` lists."""


def import_logs(
    source: Source | None,
    out: str | Path,
    *,
    outcomes: Outcomes | None = None,
    reading: Reading | None = None,
    policy: str = "",
    commit_tools: str | Sequence[str] = (),
    redact: Redact | None = None,
    progress: Callable[[ImportReport], None] | None = None,
) -> ImportReport:
    """Import logs of an agent into a dataset for training critics.

    Only runs that the dataset does not contain are added, so the same call continues an interrupted import and takes
    what is new in a growing log. Outcomes that arrive later are added to the trajectories that wait for them. Files may
    be larger than memory; memory grows by some 300 bytes per trajectory of the dataset.

    Args:
        source: as in `read`; None: only join `outcomes.table` to the dataset.
        out: folder of the dataset.
        outcomes: where outcomes come from; None: all are unknown.
        reading: as in `read`.
        policy: name of the agent, stored with each trajectory; training can select by it.
        commit_tools: names of the tools that are commits at run time, as in `amc(tools={"send_email": "commit"})`;
            stored with each new trajectory. Value models then also learn from states in which such a call was pending.
        redact: text -> text without personal data. Applied to every text before anything is written.
        progress: called with the report so far after each shard.

    Raises:
        CheckpointError: the source or the table cannot be read.
        ConfigurationError: settings contradict each other, `policy` is a URL with credentials, a function of yours
            failed, another process imports into the same folder, or it cannot be decided what a run is (see
            `Reading.turns`); then nothing was written.
        StorageError: the dataset cannot be written.
        MissingExtra: pyarrow is not installed.
    """
    pyarrow_or_error()
    refuse_credentials(policy)
    outcomes, reading, folder = outcomes or Outcomes(), reading or Reading(), Path(out)
    if source is None and outcomes.table is None:
        raise ConfigurationError("nothing to import: give a source of logs, or a table of outcomes (--outcomes)")
    if source is not None and reading.kind is None:
        reading = replace(reading, kind=kind_of(source))
    turns = Turns(reading.turns) if source is None else turns_in(source, reading, outcomes.one_for)
    reading = replace(reading, turns=turns.turns)
    table = {} if outcomes.table is None else read_outcomes(outcomes.table)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with sole_user(folder / ".import.lock", doing="amc import"):
        table = type(table)((stored_id(thread, redact), value) for thread, value in table.items())
        work = _Import(folder, outcomes, table, reading, policy, commit_names(commit_tools), redact, progress)
        if source is not None:
            work.report.one_run_each = turns.one_run_each
            work.add_all(source)
        return work.finish()


@dataclass
class _Import:
    """An import in progress."""

    folder: Path
    outcomes: Outcomes
    table: Mapping[str, float]
    reading: Reading
    policy: str
    commit_tools: tuple[str, ...]
    redact: Redact | None
    progress: Callable[[ImportReport], None] | None
    report: ImportReport = field(default_factory=ImportReport)
    waiting: list[LoggedTrajectory] = field(default_factory=list)
    waiting_size: int = 0
    """Characters of the waiting trajectories."""
    late: dict[bytes, float] = field(default_factory=dict)
    """Outcomes in the logs of runs that are stored with another outcome."""

    def __post_init__(self) -> None:
        self.stored = StoredRuns(self.folder)

    def add_all(self, source: Source) -> None:
        refused = self.folder / REFUSED
        refused.unlink(missing_ok=True)
        reading = replace(self.reading, known=self._is_known)
        try:
            with JsonLinesFile(refused) as log:
                for run in read(source, reading):
                    refusal = run if isinstance(run, Refused) else self._add(run)
                    if refusal is not None:
                        self._refuse(refusal, log)
        finally:
            # An interruption keeps what was read.
            self._flush()

    def finish(self) -> ImportReport:
        report = self.report
        report.outcomes_updated, report.outcomes_unmatched = update_outcomes(self.folder, self.late, self.table)
        report.dataset_trajectories = self.stored.groups.total()
        report.dataset_tasks = len(self.stored.groups)
        report.commit_tools = self.commit_tools
        report.dataset_outcomes_known = report.dataset_trajectories - unknown_outcomes(self.folder)
        report.save(self.folder)
        return report

    def _is_known(self, thread: str, version: str) -> bool:
        """Return whether a conversation need not be read again, because nothing about it can have changed."""
        logs_have_outcomes = (self.outcomes.reward, self.outcomes.feedback, self.outcomes.function) != (None,) * 3
        known = not logs_have_outcomes and self.stored.has_version(stored_id(thread, self.redact), version)
        self.report.imported_before += known
        return known

    def _add(self, run: LoggedRun) -> Refused | None:
        """Add a run, or note that it is known; return the reason why it is not imported."""
        thread = stored_id(run.origin.thread, self.redact)
        run_id = stored_id(run.origin.run_id, self.redact)
        try:
            in_logs = self.outcomes.of(run)
        except UnreadableRecord as error:
            return Refused(run.origin.where, str(error))
        joined = outcome_in(self.table, thread=thread, run_id=run_id, known=in_logs is not None)
        outcome = in_logs if joined is None else joined
        if not run.trajectory.steps:
            return Refused(run.origin.where, "no message of the agent: nothing to learn from")
        origin = ImportedFrom(
            kind=self.reading.kind or "", thread=thread, turn=run.turn, run_id=run_id, version=run.origin.version,
            text=_fingerprint(run.trajectory), joined=joined is not None, commit_tools=self.commit_tools,
            trial=stored_id(run.origin.trial, self.redact), started=run.origin.started, ended=run.origin.ended,
            tokens=run.origin.tokens, cost=run.origin.cost,
        )  # fmt: skip
        if origin.key in self.stored.runs:
            return self._note_known(run, origin, in_logs)
        if not run.over and outcome is None:
            self.report.unfinished += 1
            return None
        self._keep(run, origin, math.nan if outcome is None else outcome)
        return None

    def _note_known(self, run: LoggedRun, origin: ImportedFrom, in_logs: float | None) -> Refused | None:
        stored = self.stored.runs[origin.key]
        if stored.text != origin.text:
            return Refused(
                run.origin.where,
                "a run of the same conversation with another text was imported before: expected ids that are unique, "
                "and logs that only grow; give the field with the id (--thread), or import into a new folder",
            )
        self.report.duplicates += stored.new
        self.report.imported_before += not stored.new
        if in_logs is not None and in_logs != stored.outcome and not stored.joined:
            self.late[origin.key] = in_logs
        return None

    def _keep(self, run: LoggedRun, origin: ImportedFrom, outcome: float) -> None:
        trajectory = with_outcome(redacted(run.trajectory, self.redact, run.origin.where), outcome)
        group = self.stored.add(origin, outcome, trajectory.task.id)
        self.waiting.append(LoggedTrajectory(trajectory, group, self.policy, settings=origin.to_settings()))
        size = sum(map(len, texts_of(trajectory)))
        report = self.report
        report.trajectories += 1
        report.steps += len(trajectory.steps)
        report.tokens += size // _CHARACTERS_PER_TOKEN
        report.outcomes_known += not math.isnan(outcome)
        report.cut_off += run.cut_off
        report.pending_commits += sum(1 for _ in pending_states(trajectory, self.commit_tools))
        report.personal_data.update(personal_data(texts_of(trajectory)))
        self.waiting_size += size
        if self.waiting_size >= _SHARD_SIZE or len(self.waiting) >= _SHARD_ROWS:
            self._flush()

    def _refuse(self, refusal: Refused, log: JsonLinesFile) -> None:
        self.report.refused += 1
        self.report.reasons[refusal.reason] += 1
        log.append({"where": refusal.where, "reason": refusal.reason})

    def _flush(self) -> None:
        if self.waiting:
            write_shard(self.folder, self.waiting)
            self.waiting.clear()
            self.waiting_size = 0
        if self.progress is not None:
            self.progress(self.report)


def _fingerprint(trajectory: Trajectory) -> str:
    steps = [(step.thought, step.action, step.observation) for step in trajectory.steps]
    return digest(json.dumps([trajectory.task.instruction, steps]))


_SHARD_SIZE = 8_000_000
"""Characters of a shard."""
_SHARD_ROWS = 2000
_CHARACTERS_PER_TOKEN = 4
