"""Q of the trained networks against what can be computed: fixed points by enumeration, shortest paths, real chances."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from amc_agents.critics.goal.critic import FunctionSummary
from amc_agents.types import Step, Task, Trajectory

torch = pytest.importorskip("torch")

from amc_agents.training.goal.train_goal import fit  # noqa: E402
from amc_agents.training.goal.transitions import Episode, GoalData, goal_data  # noqa: E402
from amc_agents.training.settings import GoalShares, GoalTrainingSettings  # noqa: E402

pytestmark = pytest.mark.thorough

STATE = FunctionSummary(lambda one: one.steps[-1].observation if one.steps else one.task.instruction)
GAMMA = 0.8
FAST = GoalTrainingSettings(
    discount=GAMMA, batch_size=512, learning_rate=2e-3, iterations=35, updates=50, target_rate=0.05, weight_decay=0.0
)
INDEPENDENT = GoalShares(1e-9, 1.0, 0.0)
"""Goals that are drawn without a look at the trajectory's own future."""

World = dict[tuple[str, str], dict[str, float]]
"""(state, thought) -> next states and their chances; a state without thoughts is an end."""

LUCK: World = {
    ("start", "walk"): {"mid": 0.8, "pit": 0.2},
    ("start", "leap"): {"top": 0.2, "start": 0.5, "pit": 0.3},
    ("mid", "walk"): {"top": 0.5, "start": 0.5},
    ("mid", "back"): {"start": 1.0},
}
"""With luck, loops and a wrong branch without return."""

MAZE: World = {
    ("gate", "climb"): {"a": 1.0},
    ("a", "climb"): {"b": 1.0},
    ("a", "detour"): {"c": 1.0},
    ("a", "jump"): {"hole": 1.0},
    ("b", "climb"): {"d": 1.0},
    ("b", "jump"): {"hole": 1.0},
    ("c", "climb"): {"b": 1.0},
    ("c", "detour"): {"d": 1.0},
    ("d", "climb"): {"e": 1.0},
    ("d", "jump"): {"hole": 1.0},
    ("e", "climb"): {"f": 1.0},
    ("e", "detour"): {"d": 1.0},
    ("f", "climb"): {"top": 1.0},
    ("f", "jump"): {"hole": 1.0},
}
"""Without luck: ways of different lengths, a loop, and a hole without return. The top is six steps away at best."""


def thoughts_of(world: World, state: str) -> list[str]:
    return [thought for at, thought in world if at == state]


def played(world: World, n: int, seed: int, *, most: int = 6) -> list[Episode]:
    """Thoughts at random, from the first state on, for `most` steps at most."""
    rng, found = np.random.default_rng(seed), []
    first = next(iter(world))[0]
    for _ in range(n):
        state, steps = first, []
        while (options := thoughts_of(world, state)) and len(steps) < most:
            thought = str(rng.choice(options))
            chances = world[state, thought]
            state = str(rng.choice(list(chances), p=list(chances.values())))
            steps.append(Step("-", observation=state, thought=thought))
        cut = bool(thoughts_of(world, state))
        found.append(Episode(Trajectory(Task("t", first), tuple(steps), done=True), cut))
    return found


def one_hot(data: GoalData):
    return np.eye(len(data.texts), dtype=np.float32)


def answers(network, data: GoalData, keys) -> dict[tuple, float]:
    hot = one_hot(data)
    rows = np.array([[data.texts.index(text) for text in key] for key in keys])
    return dict(zip(keys, network.q(hot[rows[:, 0]], hot[rows[:, 1]], hot[rows[:, 2]]).tolist(), strict=True))


def worst(found: dict[tuple, float], expected: dict[tuple, float]) -> float:
    return max(abs(found[key] - value) for key, value in expected.items())


def fixed_point(episodes: list[Episode], settings: GoalTrainingSettings, *, late: int = 0):
    """Q of the tau-expectile backup, over the exact distribution of (state, thought, next state, goal).

    With `late` every goal pays that many steps too late: what an off-by-one would learn.
    """
    paths = [[one.trajectory.task.instruction, *(s.observation for s in one.trajectory.steps)] for one in episodes]
    n_states, shares, gamma = sum(map(len, paths)), settings.shares, settings.discount
    total = shares.future + shares.random + shares.current
    everywhere: dict[str, int] = {}
    for path in paths:
        for state in path:
            everywhere[state] = everywhere.get(state, 0) + 1
    rows: dict[tuple, float] = {}
    for one, path in zip(episodes, paths, strict=True):
        end = len(path) - 1
        for t, step in enumerate(one.trajectory.steps):
            chance: dict[str, float] = {path[t]: shares.current / total}
            near = np.array([gamma**k for k in range(end - t)])
            for k, weight in enumerate(near / near.sum()):
                chance[path[t + 1 + k]] = chance.get(path[t + 1 + k], 0.0) + shares.future / total * weight
            for goal, count in everywhere.items():
                others = (count - path.count(goal)) / (n_states - len(path))
                chance[goal] = chance.get(goal, 0.0) + shares.random / total * others
            last = "cut" if one.truncated and t + 1 == end else "end" if t + 1 == end else "on"
            for goal, weight in chance.items():
                key = path[t], step.thought, path[t + 1], goal, last
                rows[key] = rows.get(key, 0.0) + weight
    q: dict[tuple, float] = {(s, a, g): 0.0 for s, a, _, g, _ in rows}
    v: dict[tuple, float] = {(s, g): 0.0 for s, _, _, g, _ in rows}
    for _ in range(200):
        sums: dict[tuple, list[float]] = {}
        pulls: dict[tuple, list[tuple[float, float]]] = {}
        for (s, a, after, g, last), weight in rows.items():
            if s == g:
                pulls.setdefault((s, g), []).append((1.0, weight))
            elif after == g or last != "cut":
                target = gamma**late if after == g else 0.0 if last == "end" else gamma * v.get((after, g), 0.0)
                both = sums.setdefault((s, a, g), [0.0, 0.0])
                both[0], both[1] = both[0] + weight * target, both[1] + weight
                pulls.setdefault((s, g), []).append((q[s, a, g], weight))
        q |= {key: top / bottom for key, (top, bottom) in sums.items()}
        for key, pairs in pulls.items():
            values, weights = np.array(pairs).T
            for _ in range(60):
                leaning = weights * np.where(values > v[key], settings.expectile, 1 - settings.expectile)
                v[key] = float((leaning * values).sum() / leaning.sum())
    return {key: q[key] for key in sums}


def fewest_steps(world: World, start: str, goal: str) -> float:
    """Actions from a state to a goal, in a world without luck; infinite where there is no way."""
    seen, frontier, steps = {start}, {start}, 0
    while frontier and goal not in frontier:
        reached = {after for at in frontier for thought in thoughts_of(world, at) for after in world[at, thought]}
        frontier, steps = reached - seen, steps + 1
        seen |= reached
    return steps if frontier else np.inf


def chances(world: World, goal: str) -> dict[tuple, float]:
    """Discounted chance of the goal after each thought, where thoughts are then drawn evenly."""
    states = sorted({state for state, _ in world} | {after for found in world.values() for after in found})
    v = dict.fromkeys(states, 0.0)
    for _ in range(500):
        q = {
            (state, thought, goal): sum(p * (1.0 if after == goal else GAMMA * v[after]) for after, p in found.items())
            for (state, thought), found in world.items()
        }
        v = {s: float(np.mean([q[s, a, goal] for a in thoughts_of(world, s)] or [0.0])) for s in states}
    return q


@pytest.mark.parametrize("expectile", [0.5, 0.8, 0.95])
async def test_q_is_the_fixed_point_of_the_expectile_backup(expectile):
    episodes = played(LUCK, 400, seed=1)
    assert {len(one.trajectory.steps) for one in episodes} == {1, 2, 3, 4, 5, 6}
    assert 10 < sum(one.truncated for one in episodes) < 200
    data = await goal_data(episodes, STATE)
    settings = replace(FAST, expectile=expectile)
    network, _ = fit(data, one_hot(data), settings, np.random.default_rng(0))
    expected = fixed_point(episodes, settings)
    assert len(expected) == 12
    assert worst(answers(network, data, list(expected)), expected) <= 0.05
    # What the check would say of a network that learned nothing, or goals that pay one step late.
    assert min(worst(dict.fromkeys(expected, c), expected) for c in np.linspace(0, 1, 101)) > 0.2
    assert worst(fixed_point(episodes, settings, late=1), expected) > 0.1


async def test_a_high_expectile_finds_the_best_path_and_unreachable_goals_are_worth_0():
    data = await goal_data(played(MAZE, 800, seed=2, most=30), STATE)
    settings = replace(FAST, expectile=0.99, iterations=50, learning_rate=1e-3, target_rate=0.02)
    network, _ = fit(data, one_hot(data), settings, np.random.default_rng(0))
    ends = {"top", "hole"}
    goals = sorted({state for state, _ in MAZE} | ends)
    expected, hopeless = {}, {}
    for (state, thought), found in MAZE.items():
        (after,) = found
        for goal in goals:
            left = fewest_steps(MAZE, after, goal)
            if state != goal:
                (expected if left < np.inf else hopeless)[state, thought, goal] = GAMMA**left if left < np.inf else 0.0
    assert expected["gate", "climb", "top"] == pytest.approx(GAMMA**5)
    assert expected["c", "detour", "top"] > expected["c", "climb", "top"]
    assert len(expected) > 30
    assert len(hopeless) > 30
    assert worst(answers(network, data, list(expected)), expected) <= 0.1
    assert max(answers(network, data, list(hopeless)).values()) < 0.05
    late = {key: GAMMA * value for key, value in expected.items()}
    assert worst(late, expected) > 0.1


async def test_with_independent_goals_and_expectile_one_half_q_is_the_value_of_the_behaviour():
    data = await goal_data(played(LUCK, 3000, seed=3, most=200), STATE)
    settings = replace(FAST, expectile=0.5, iterations=50, learning_rate=1e-3, shares=INDEPENDENT)
    network, _ = fit(data, one_hot(data), settings, np.random.default_rng(0))
    expected = {}
    for goal in ("start", "mid", "top", "pit"):
        expected |= {key: q for key, q in chances(LUCK, goal).items() if key[0] != goal}
    found = answers(network, data, list(expected))
    assert worst(found, expected) <= 0.05, (found, expected)
    # What leans towards the better thought is another function: the check tells them apart.
    other = fixed_point(played(LUCK, 300, seed=3, most=200), replace(settings, expectile=0.95))
    assert worst(other, {key: value for key, value in expected.items() if key in other}) > 0.1


async def test_a_reward_for_the_state_that_is_left_fails_the_check(monkeypatch):
    """The paper's r(s, g), taken literally: the last states never pay, and all others one step late."""
    honest = GoalData.batch

    def literal(self, transitions, goal):
        found = honest(self, transitions, goal)
        return found._replace(reached=found.already, already=np.zeros_like(found.already))

    episodes = played(LUCK, 400, seed=1)
    data = await goal_data(episodes, STATE)
    expected = fixed_point(episodes, FAST)
    monkeypatch.setattr(GoalData, "batch", literal)
    network, _ = fit(data, one_hot(data), replace(FAST, iterations=15), np.random.default_rng(0))
    assert worst(answers(network, data, list(expected)), expected) > 0.3
