"""A critic with a calibration to your own outcomes: `calibrated:FOLDER`, as `amc calibrate` writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amc_agents.critics.adapting import connect
from amc_agents.critics.options import allow, needed
from amc_agents.critics.saved import SavedFields, read_saved
from amc_agents.critics.validation import checked_values
from amc_agents.critics.value.value_calibration import ValueCalibration, calibration_from_json
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import replace_file
from amc_agents.quoting import excerpt
from amc_agents.types import Critic, FloatArray, Trajectory
from amc_agents.usage import Usage

FILE = "amc_calibration.json"
"""Name of the file in the folder."""


def from_spec(target: str, options: Mapping[str, str]) -> CalibratedCritic:
    """The critic of `calibrated:FOLDER`."""
    allow("calibrated", options)
    return load_calibrated(needed("calibrated", target, "path/to/folder"))


class CalibratedCritic:
    """A critic whose values pass through a non-decreasing map, which keeps its ranking.

    Args:
        critic: any critic that values trajectories, in the form that `parse_critic` returns.
        calibration: the map, from the critic's values to reward units.
        name: the critic's name in messages.

    Raises:
        ConfigurationError: the critic has no values, or it is a model of eq. 5, whose values are no means.
    """

    def __init__(self, critic: Critic, calibration: ValueCalibration, *, name: str = "calibrated") -> None:
        if not isinstance(critic, Critic):
            raise ConfigurationError(f"{type(critic).__name__} does not value trajectories, so it cannot be calibrated")
        self.critic, self.calibration, self.name = critic, calibration, name

    @property
    def predicts(self) -> str:
        """The predicted quantity: "future", the return still to come, or "return", the whole return."""
        predicts: str = getattr(self.critic, "predicts", "future")
        return predicts

    @property
    def usage(self) -> Usage:
        """Total usage of the critic so far."""
        usage: Usage = getattr(self.critic, "usage", Usage())
        return usage

    async def connect(self) -> None:
        """Connect the critic. Errors are those of the critic."""
        await connect(self.critic)

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` calibrated predictions in reward units. Errors are those of the critic."""
        trajectories = tuple(trajectories)
        values = await self.critic.values(trajectories)
        return self.calibration(checked_values(values, len(trajectories), self.name))


def save_calibrated(folder: str | Path, critic: str, calibration: ValueCalibration, report: Mapping[str, Any]) -> Path:
    """Write a calibration's file, atomically.

    Args:
        folder: an existing folder.
        critic: the critic's string; a path in it is relative to the working directory.
        calibration: the map.
        report: the report of the calibration, as plain values.

    Raises:
        StorageError: the file cannot be written.
    """
    content = {
        "kind": "amc-calibration", "version": _VERSION, "critic": critic, "calibration": calibration.to_json(),
        "report": dict(report),
    }  # fmt: skip
    path = Path(folder) / FILE
    replace_file(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return path


def load_calibrated(folder: str | Path) -> CalibratedCritic:
    """Load a critic from a folder that `amc calibrate` wrote.

    Raises:
        CheckpointError: the file is missing or damaged.
        CriticSpecError: the critic's string cannot be parsed.
    """
    from amc_agents.critics.spec import parse_critic

    path = Path(folder) / FILE
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist: expected a folder that `amc calibrate` wrote")
    saved = read_saved(path, _Saved, "a calibration", kind="amc-calibration", versions=(_VERSION,))
    try:
        calibration = calibration_from_json(saved["calibration"])
    except (CheckpointError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {excerpt(str(error), 300)}") from error
    return CalibratedCritic(parse_critic(saved["critic"]), calibration, name=f"calibrated:{folder}")


class _Saved(SavedFields):
    critic: str
    calibration: dict[str, Any]
    report: dict[str, Any]


_VERSION = 1
