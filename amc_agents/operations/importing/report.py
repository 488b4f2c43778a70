"""The report of an import."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path

from amc_agents.errors import CheckpointError
from amc_agents.files import read_json_object, replace_file

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
