from dataclasses import replace

import numpy as np
import pytest
import torch

from amc_agents.critics.render import PLAIN, Encoder
from amc_agents.training.settings import Objective
from amc_agents.training.value.one_pass import loss
from amc_agents.training.value.rows import TargetRow
from tests.training.known_world import mean_value, name, population, soft_value, tilted_mean
from tests.training.target_rows import target_rows

ENCODER = Encoder(PLAIN, lambda text: list(text.encode()))


def batch_of(rows, dtype=torch.float64):
    return {
        name: torch.tensor([value for row in rows for value in getattr(row, name)], dtype=dtype)
        for name in ("targets", "weights")
    }


def test_targets_have_no_gradient_and_weights_scale_it():
    batch = {"targets": torch.tensor([1.0, 1.0, 0.0]), "weights": torch.tensor([0.5, 2.0, 1.0])}
    for objective, slope, link in ((Objective(), 2.0, torch.clone), (Objective(loss="bce"), 1.0, torch.sigmoid)):
        scores = torch.tensor([0.3, -0.2, 0.8], dtype=torch.float64, requires_grad=True)
        loss(scores, batch, objective).backward()
        expected = slope * batch["weights"] * (link(scores.detach()) - batch["targets"])
        torch.testing.assert_close(scores.grad, expected.double())


def test_the_loss_is_a_sum_in_the_data_type_of_the_scores():
    one = TargetRow((0, 0), (0, 1), (0, 1), (1.0, 0.0), (False, True), True, (3.0, 1.0))
    scores = torch.tensor([0.5, 0.5])
    total = loss(scores, batch_of([one], torch.float64), Objective(loss="weighted", beta=1.0))
    assert total.dtype == torch.float32
    assert total.item() == 3 * 0.25 + 0.25
    twice = loss(scores.repeat(2), batch_of([one, one]), Objective(loss="weighted", beta=1.0))
    assert twice.item() == 2 * total.item()


def gradient_at(objective, value, rows, trajectories):
    """The gradient of the population's loss at given scores, for a table with a score per state."""
    states = [name(trajectory, t) for trajectory in trajectories for t in range(len(trajectory.steps) + 1)]
    known = sorted(set(states))
    table = torch.tensor([value(state) for state in known], dtype=torch.float64, requires_grad=True)
    scores = table[[known.index(state) for state in states]]
    (loss(scores, batch_of(rows), objective) / len(states)).backward()
    return table.grad.abs().max().item()


@pytest.mark.parametrize(
    ("objective", "value"),
    [
        (Objective(), mean_value),
        (Objective(soft=True, beta=0.4), lambda state: soft_value(state, 0.4)),
        (Objective(loss="weighted", beta=0.4), lambda state: tilted_mean(state, 0.4)),
    ],
)
def test_each_loss_is_least_at_the_value_that_it_states(objective, value):
    trajectories = population()
    rows = target_rows(trajectories, ENCODER, objective)
    assert gradient_at(objective, value, rows, trajectories) < 1e-14
    # The three values differ, so that a loss with another minimiser has a gradient at this one.
    others = [mean_value, lambda state: soft_value(state, 0.4), lambda state: tilted_mean(state, 0.4)]
    assert sum(gradient_at(objective, other, rows, trajectories) > 1e-3 for other in others) == 2


def test_binary_cross_entropy_is_least_at_the_log_odds_of_success():
    objective = Objective(loss="bce")
    succeeds = {"a": True, "bx": True, "by": False, "bz": False}
    played = population()
    trajectories = []
    for one in played:
        good = any(name(one, len(one.steps)).startswith(prefix) for prefix, yes in succeeds.items() if yes)
        steps = tuple(replace(step, reward=0.0) for step in one.steps)
        trajectories.append(replace(one, steps=(*steps[:-1], replace(steps[-1], reward=float(good)))))
    rows = target_rows(trajectories, ENCODER, objective)
    # Of 64: 16 by a, 12 by bx of the 48 by b.
    odds = {"": 28 / 36, "b": 12 / 36}
    scores = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    places = {"": 0, "b": 1}
    total = torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        for state, index in places.items():
            scores[index] = np.log(odds[state])
    for trajectory, one in zip(trajectories, rows, strict=True):
        batch = batch_of([one])
        for t in range(len(one.marks)):
            if name(trajectory, t) in places:
                single = {key: column[t : t + 1] for key, column in batch.items()}
                total = total + loss(scores[[places[name(trajectory, t)]]], single, objective)
    total.backward()
    assert scores.grad.abs().max().item() < 1e-12
