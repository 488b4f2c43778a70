import numpy as np
import pytest

pytest.importorskip("minigrid")

from amc_agents_minigrid import ACTIONS, GO_TO_LOCAL, PICKUP_LOCAL, Expert, make_level

OTHERS = ("BabyAI-PickupLoc-v0", "BabyAI-PutNextLocal-v0", "BabyAI-OpenDoor-v0")


def played(name, seed, error_rate=0.0, horizon=30):
    level = make_level(name, seed, horizon)
    expert = Expert(level, error_rate, np.random.default_rng(seed))
    turns, over = [], False
    while not over:
        turns.append(expert.turn())
        _, reward, solved, cut, _ = level.step(ACTIONS[turns[-1].action])
        over = solved or cut
    return turns, reward > 0


@pytest.mark.parametrize("name", [GO_TO_LOCAL, PICKUP_LOCAL, *OTHERS])
def test_without_mistakes_every_task_is_solved(name):
    horizon = 30 if name in (GO_TO_LOCAL, PICKUP_LOCAL) else 64
    assert [played(name, seed, horizon=horizon)[1] for seed in range(20)] == [True] * 20


@pytest.mark.parametrize("name", [GO_TO_LOCAL, PICKUP_LOCAL])
def test_it_takes_over_where_another_has_made_mistakes(name):
    solved = []
    for seed in range(20):
        level = make_level(name, seed, 60)
        novice, over = Expert(level, 0.6, np.random.default_rng(seed)), False
        for _ in range(6):
            over = over or level.step(ACTIONS[novice.turn().action])[2]
        master = Expert(level)
        while not over and level.step_count < 60:
            over = level.step(ACTIONS[master.turn().action])[2]
        solved.append(over)
    assert solved == [True] * 20


def test_the_more_mistakes_the_fewer_successes():
    solved = [np.mean([played(PICKUP_LOCAL, seed, rate)[1] for seed in range(60)]) for rate in (0.0, 0.3, 0.6)]
    assert solved[0] == 1.0
    assert solved[0] > solved[1] > solved[2]


def test_mistakes_are_marked_and_none_is_made_at_rate_0():
    assert not any(turn.mistaken for turn in played(PICKUP_LOCAL, 1)[0])
    turns = [turn for seed in range(40) for turn in played(PICKUP_LOCAL, seed, 0.2)[0]]
    # Mistakes begin in a fifth of the steps, and some last.
    assert 0.2 < np.mean([turn.mistaken for turn in turns]) < 0.6


def test_the_thought_says_where_the_thing_is():
    thoughts = [turn.thought for seed in range(20) for turn in played(GO_TO_LOCAL, seed)[0]]
    assert all(thought.startswith(("I see a ", "I see no ")) for thought in thoughts)
    assert any(thought.endswith("forward") for thought in thoughts)


def test_the_same_rng_makes_the_same_mistakes():
    assert played(GO_TO_LOCAL, 4, 0.5) == played(GO_TO_LOCAL, 4, 0.5)


def test_mistakes_need_an_rng():
    with pytest.raises(ValueError, match="expected an rng"):
        Expert(make_level(GO_TO_LOCAL, 0, 30), 0.1)
