"""The training rows of a few trajectories, as a training builds and reads them, and their scores."""

from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from amc_agents.critics.render import Encoder
from amc_agents.training.settings import Objective
from amc_agents.training.value.batches import collate
from amc_agents.training.value.one_pass import classifier, scores_at_marks
from amc_agents.training.value.row_building import build_rows
from amc_agents.training.value.rows import TargetRow
from amc_agents.types import FloatArray, Trajectory


def target_rows(
    trajectories: Sequence[Trajectory], encoder: Encoder, objective: Objective | None = None, **options: Any
) -> list[TargetRow]:
    """The rows of all windows, in the order of the trajectories."""
    with TemporaryDirectory() as cache:
        return list(build_rows(trajectories, cache, encoder, objective, tokenizer="test", **options))


def row_values(model: Any, rows: Sequence[TargetRow]) -> list[FloatArray]:
    """The scores `[S]` at the marks of each row, from one padded batch in evaluation mode."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        scores = scores_at_marks(model, collate(rows, classifier(model).config.get_text_config().pad_token_id))
    model.train(was_training)
    return np.split(scores.cpu().double().numpy(), np.cumsum([len(row.marks) for row in rows])[:-1])
