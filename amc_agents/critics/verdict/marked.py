"""The default prompt of a verdict for models without a checkpoint: a random marker begins the record's own lines."""

from __future__ import annotations

from amc_agents.critics.judge.style import EXPLAINED
from amc_agents.critics.render import PromptFormat
from amc_agents.critics.verdict.checkpoint import STEPWISE, VerdictFormat


def marked_stepwise(marker: str) -> VerdictFormat:
    """Return `STEPWISE` with a marker in front of the record's own lines.

    No text of an agent or a world contains the marker, so none can end the record, or add a step or a verdict to it.

    Args:
        marker: see `amc_agents.critics.judge.style.new_marker`. It is constant, so that prompts stay append-only.
    """
    return VerdictFormat(
        rounds=PromptFormat(
            name="verdict-marked",
            opening=f"{EXPLAINED.format(marker=marker)}\n\n{marker} Task\n{{instruction}}",
            round=f"\n{marker} Step\n{{turn}}\n{marker} Observation: {{observation}}",
            marker="\n",
        ),
        question=f"\n{marker} End of the record\n{STEPWISE.question}",
    )
