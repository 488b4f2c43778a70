"""The training rows of a few trajectories, as a training builds and reads them."""

from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

from amc_agents.critics.render import Encoder
from amc_agents.training.value.data import TargetRow
from amc_agents.training.value.objective import Objective
from amc_agents.training.value.row_building import build_rows
from amc_agents.types import Trajectory


def target_rows(
    trajectories: Sequence[Trajectory], encoder: Encoder, objective: Objective | None = None, **options: Any
) -> list[TargetRow]:
    """The rows of all windows, in the order of the trajectories."""
    with TemporaryDirectory() as cache:
        return list(build_rows(trajectories, cache, encoder, objective, tokenizer="test", **options))
