from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from amc_agents.critics.render import PLAIN, Encoder
from amc_agents.training.value.objective import Objective
from amc_agents.training.value.one_pass import lambda_targets, loss
from amc_agents.training.value.rows import TargetRow
from tests.training.known_world import mean_value, name, population, soft_value, tilted_mean
from tests.training.target_rows import target_rows

ENCODER = Encoder(PLAIN, lambda text: list(text.encode()))


def row(targets, rewards, final, weights=None):
    n = len(targets)
    marks = tuple(range(n))
    return TargetRow((0,) * n, marks, marks, tuple(targets), tuple(final), False, tuple(rewards), weights or (1.0,) * n)


def batch_of(rows, dtype=torch.float64):
    counts = [len(row.marks) for row in rows]
    follows = [index + 1 for index in range(sum(counts))]
    for last in np.cumsum(counts) - 1:
        follows[last] = -1

    def flat(field, dtype):
        return torch.tensor([one for row in rows for one in getattr(row, field)], dtype=dtype)

    return {
        "targets": flat("targets", dtype),
        "weights": flat("weights", dtype),
        "rewards": flat("rewards", dtype),
        "ends": flat("final", torch.bool),
        "follows": torch.tensor(follows),
    }


def test_td_lambda_agrees_with_a_calculation_by_hand():
    # Rewards 0.5, 0, 1, then the end; values 0.2, 0.4, 0.6, 0.9; lambda 0.5.
    #   y2 = 1                                     (the return at the end is known: 0.9 is not used)
    #   y1 = 0   + 0.5 x 0.6 + 0.5 x 1    = 0.8
    #   y0 = 0.5 + 0.5 x 0.4 + 0.5 x 0.8  = 1.1
    whole = row([1.5, 1.0, 1.0, 0.0], [0.5, 0.0, 1.0, 0.0], [False, False, False, True])
    values = torch.tensor([0.2, 0.4, 0.6, 0.9], dtype=torch.float64)
    objective = Objective(td_lambda=0.5)
    assert lambda_targets(values, batch_of([whole]), objective).tolist() == pytest.approx([1.1, 0.8, 1.0, 0.0])
    # lambda 0: the reward and the next value.
    at_zero = lambda_targets(values, batch_of([whole]), Objective(td_lambda=0.0))
    assert at_zero.tolist() == pytest.approx([0.9, 0.6, 1.0, 0.0])
    # Targets of the whole return, 1.5: no reward is added, and the return at the end is known.
    #   y2 = 1.5, y1 = 0.5 x 0.6 + 0.5 x 1.5 = 1.05, y0 = 0.5 x 0.4 + 0.5 x 1.05 = 0.725
    of_return = replace(whole, targets=(1.5,) * 4)
    targets = lambda_targets(values, batch_of([of_return]), Objective(td_lambda=0.5, target="return"))
    assert targets.tolist() == pytest.approx([0.725, 1.05, 1.5, 1.5])


def test_td_lambda_of_a_binary_loss_uses_probabilities():
    # Scores 0, log 3, -9: values 0.5, 0.75 and an unused one at the end; lambda 0.5; the last step succeeds.
    #   y1 = 1, y0 = 0.5 x 0.75 + 0.5 x 1 = 0.875
    whole = row([1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [False, False, True])
    scores = torch.tensor([0.0, np.log(3.0), -9.0], dtype=torch.float64)
    objective = Objective(loss="bce", td_lambda=0.5)
    assert lambda_targets(scores, batch_of([whole]), objective).tolist() == pytest.approx([0.875, 1.0, 0.0])
    # -[y log p + (1 - y) log(1 - p)] at p = 0.5, 0.75 and sigmoid(-9).
    expected = np.log(2) - np.log(0.75) + np.log1p(np.exp(-9))
    assert loss(scores, batch_of([whole]), objective).item() == pytest.approx(expected, rel=1e-12)


def test_a_window_that_ends_before_its_trajectory_uses_the_monte_carlo_return():
    # The same trajectory, its states 0 and 1 in one window and 2 and 3 in the next: y1 = G1 = 1, y0 = .5 + .2 + .5.
    windows = [
        row([1.5, 1.0], [0.5, 0.0], [False, False]),
        row([1.0, 0.0], [1.0, 0.0], [False, True]),
    ]
    values = torch.tensor([0.2, 0.4, 0.6, 0.9], dtype=torch.float64)
    targets = lambda_targets(values, batch_of(windows), Objective(td_lambda=0.5))
    assert targets.tolist() == pytest.approx([1.2, 1.0, 1.0, 0.0])


def by_definition(row, values, rate):
    """y_t = r_{t+1} + (1 - lambda) v(s_{t+1}) + lambda y_{t+1}, state by state from the end."""
    returns = [row.targets[-1]]
    for t in reversed(range(len(row.marks) - 1)):
        value = row.targets[t + 1] if row.final[t + 1] else values[t + 1]
        returns.insert(0, row.rewards[t] + (1 - rate) * value + rate * returns[0])
    return returns


ROWS = st.lists(
    st.tuples(st.lists(st.floats(-2, 2), min_size=0, max_size=12), st.booleans(), st.floats(-1, 1)),
    min_size=1, max_size=5,
)  # fmt: skip


@given(ROWS, st.floats(0, 1), st.integers(0, 99))
def test_td_lambda_is_the_recursion_for_rows_of_any_length(drawn, rate, seed):
    rows = []
    for rewards, ended, tail in drawn:
        # The step from the last state leaves the window; `tail` is the return of the rest of the trajectory.
        rewards = [*rewards, 0.0 if ended else tail]
        targets = np.cumsum(rewards[::-1])[::-1]
        rows.append(row(targets, rewards, [False] * (len(rewards) - 1) + [ended]))
    values = torch.from_numpy(np.random.default_rng(seed).normal(size=sum(len(one.marks) for one in rows)))
    returns = lambda_targets(values, batch_of(rows), Objective(td_lambda=rate))
    parts = torch.split(values, [len(one.marks) for one in rows])
    expected = [y for one, part in zip(rows, parts, strict=True) for y in by_definition(one, part.tolist(), rate)]
    np.testing.assert_allclose(returns, expected, rtol=0, atol=1e-12)


def test_lambda_one_is_monte_carlo_to_the_last_bit():
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=30)
    one = row(np.cumsum(rewards[::-1])[::-1], rewards, [False] * 29 + [True])
    batch = batch_of([one], torch.float32)
    scores = torch.from_numpy(rng.normal(size=30)).float()
    assert torch.equal(lambda_targets(scores, batch, Objective()), batch["targets"])
    # The recursion itself, without the special case, converges to it.
    near = lambda_targets(scores, batch, Objective(td_lambda=1 - 1e-9))
    torch.testing.assert_close(near, batch["targets"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("objective", [Objective(td_lambda=0.3), Objective(loss="bce", td_lambda=0.3)])
def test_targets_have_no_gradient(objective):
    one = row([1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [False, False, True], (0.5, 2.0, 1.0))
    scores = torch.tensor([0.3, -0.2, 0.8], dtype=torch.float64, requires_grad=True)
    loss(scores, batch_of([one]), objective).backward()
    targets = lambda_targets(scores, batch_of([one]), objective)
    assert not targets.requires_grad
    values = scores.detach() if objective.loss == "squared" else scores.detach().sigmoid()
    slope = 2.0 if objective.loss == "squared" else 1.0
    weights = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(scores.grad, slope * weights * (values - targets))


def test_binary_targets_that_use_values_stay_probabilities():
    # The reward comes before the end, and the next state has the value 0.5: r + v = 1.5 is not a probability.
    one = row([1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [False, False, True])
    scores = torch.tensor([0.0, 0.0, 0.0], dtype=torch.float64)
    targets = lambda_targets(scores, batch_of([one]), Objective(loss="bce", td_lambda=0.0))
    assert targets.tolist() == [1.0, 0.0, 0.0]


def test_the_loss_is_a_sum_in_the_data_type_of_the_scores():
    one = row([1.0, 0.0], [1.0, 0.0], [False, True], (3.0, 1.0))
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
        # With a table, TD(lambda)'s fixed point is Monte Carlo's minimiser at every lambda, the weighted one too:
        # E[exp(G / beta) (r + V(s'))] = E[exp(G / beta) G] where V is the tilted mean.
        (Objective(td_lambda=0.0), mean_value),
        (Objective(td_lambda=0.6), mean_value),
        (Objective(loss="weighted", beta=0.4, td_lambda=0.6), lambda state: tilted_mean(state, 0.4)),
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
                single = {key: batch[key][t : t + 1] for key in ("targets", "weights", "ends")}
                single["follows"] = torch.tensor([-1])
                total = total + loss(scores[[places[name(trajectory, t)]]], single, objective)
    total.backward()
    assert scores.grad.abs().max().item() < 1e-12
