import random
import threading

import pytest

pytest.importorskip("textarena", reason="the package textarena is not installed")

from amc_agents_textarena import Luck, TextArenaTask, TextArenaWorld, textarena_world
from amc_agents_textarena.games import GAME_2048, LIGHTS_OUT, MASTERMIND, MINESWEEPER, SOKOBAN

from amc_agents import amc, text_agent
from amc_agents.envs.registry import world, worlds
from amc_agents.errors import ConfigurationError, EnvironmentStateError
from amc_agents.smc import AtSteps
from amc_agents.testing import ScriptedChatModel, check_environment
from amc_agents.types import Task

OFFERED = (GAME_2048, LIGHTS_OUT, MASTERMIND, MINESWEEPER, SOKOBAN)
HANOI = ["[A C]", "[A B]", "[C B]", "[A C]", "[B A]", "[B C]", "[A C]"]
"""Solves three disks."""


def first_task(spec, number=0):
    return next(iter(spec.tasks(1, "test", number)))


async def test_a_deterministic_game_keeps_the_contract():
    spec = textarena_world("TowerOfHanoi-v0")
    await check_environment(spec.make, first_task(spec), ["[A B]", "[B A]", *HANOI])


async def test_a_game_that_draws_keeps_the_contract():
    moves = ["[Up]", "[Left]", "[Down]", "[Right]"] * 4 + ["[no]", "[no]"]
    await check_environment(GAME_2048.make, first_task(GAME_2048), moves, stochastic=True)


async def test_a_game_in_a_process_is_forked_with_it():
    made = textarena_world("2048-v0", fork="process").make()
    await made.reset(first_task(GAME_2048))
    same, other = await made.fork(1), await made.fork(2)
    twin = await made.fork(1)
    answers = [await each.step("[Up]") for each in (same, twin, other)]
    assert answers[0] == answers[1] != answers[2]
    for each in (made, same, other, twin):
        await each.close()


@pytest.mark.parametrize(
    "game",
    ["Bandit", "Countdown", "Cryptarithm", "FifteenPuzzle", "GuessTheNumber", "LightsOut", "Mastermind", "Minesweeper",
     "Secretary", "Slitherlink", "Sokoban", "Sudoku"],
)  # fmt: skip
async def test_other_games_start_and_end_alike_for_the_same_seed(game):
    spec = textarena_world(f"{game}-v0")
    task = first_task(spec)
    played = []
    for seed in range(2):
        random.seed(seed)
        made = spec.make()
        answers = [await made.reset(task)]
        while not answers[-1].done:
            answers.append(await made.step("[nonsense]"))
        played.append(answers)
    assert played[0] == played[1]
    assert played[0][0].observation == task.instruction
    assert "[nonsense]" not in played[0][1].observation, "the agent knows its action"


async def test_a_solved_game_pays_one_and_says_why():
    spec = textarena_world("TowerOfHanoi-v0")
    made = spec.make()
    await made.reset(first_task(spec))
    answers = [await made.step(move) for move in HANOI]
    assert [answer.reward for answer in answers] == [0.0] * 6 + [1.0]
    assert answers[-1].terminated
    assert "ongratulations" in answers[-1].observation
    with pytest.raises(EnvironmentStateError, match="after the end"):
        await made.step("[A B]")


async def test_the_callers_random_state_is_neither_used_nor_changed():
    task = first_task(GAME_2048)
    seen = []
    for seed in (1, 2):
        random.seed(seed)
        before = random.getstate()
        made = GAME_2048.make()
        await made.reset(task)
        twin = await made.fork(3)
        await twin.step("[Up]")
        seen.append(await made.step("[Up]"))
        list(GAME_2048.tasks(2, "train", 0))
        assert random.getstate() == before
    assert seen[0] == seen[1]


async def test_the_callers_state_returns_after_an_error():
    random.seed(4)
    before = random.getstate()
    with pytest.raises(ConfigurationError):
        list(textarena_world("ConnectFour-v0").tasks(1, "test", 0))
    assert random.getstate() == before


def test_worlds_in_several_threads_draw_what_they_draw_alone():
    def draw(luck, draws):
        for _ in range(200):
            with luck.drawn():
                draws.append(random.random())

    drawn = [[], []]
    threads = [threading.Thread(target=draw, args=(Luck(seed), draws)) for seed, draws in enumerate(drawn)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert drawn == [[generator.random() for _ in range(200)] for generator in (random.Random(0), random.Random(1))]


async def test_an_invalid_move_that_ends_the_game_keeps_its_reward_and_reason():
    made = TextArenaWorld()
    await made.reset(Task("monte", "x", TextArenaTask("ThreeCardMonte-v0", 1)))
    await made.step("nonsense")
    last = await made.step("nonsense")  # The game gives the two in the wrong order.
    assert (last.terminated, last.reward, last.observation) == (True, 0.0, "Invalid Move: Bad action. Use `[k]`.")


async def test_an_action_too_long_for_a_number_is_an_observation():
    spec = textarena_world("GuessTheNumber-v0")
    made = spec.make()
    await made.reset(first_task(spec))
    answer = await made.step(f"[{'9' * 5000}]")
    assert (answer.observation, answer.done) == ("Invalid action: it has more than 4,000 characters.", False)


def test_making_a_task_prints_nothing(capsys):
    list(textarena_world("LogicPuzzle-v0").tasks(2, "test", 0))
    assert capsys.readouterr().out == ""


async def test_games_that_cannot_start_are_errors_that_name_them():
    for game in ("Nonsense-v0", "ConnectFour-v0"):
        with pytest.raises(ConfigurationError, match=f"cannot start the solo game '{game}'"):
            list(textarena_world(game).tasks(1, "test", 0))
    with pytest.raises(EnvironmentStateError, match="got NoneType"):
        await TextArenaWorld().reset(Task("other", "x"))
    with pytest.raises(ConfigurationError, match="copy or process, got 'replay'"):
        textarena_world("2048-v0", fork="replay")
    with pytest.raises(ConfigurationError, match="got 'valid' and 0 to 0"):
        list(LIGHTS_OUT.tasks(1, "valid", 0))


@pytest.mark.parametrize("offered", OFFERED)
async def test_offered_worlds_are_registered_and_their_splits_differ(offered):
    train, test = (list(offered.tasks(3, split, 0)) for split in ("train", "test"))
    assert not {task.payload.seed for task in train} & {task.payload.seed for task in test}
    name = test[0].id.split("/")[0]
    assert test[0].payload == TextArenaTask(test[0].payload.game, 100_000_000)
    if name in worlds():  # Where this package is installed, not only on the path.
        assert world(name) is offered


def test_amc_plays_a_game_of_chance():
    turns = ["[Up]", "[Left]", "[Down]", "[Right]"]
    agent = text_agent(ScriptedChatModel(respond=lambda messages: f"Action: {turns[len(messages) // 2 % 4]}"))
    task = first_task(GAME_2048)
    search = amc(
        agent, "uniform", environment=lambda _: (GAME_2048.make(), task), n_particles=3, horizon=6,
        resample=AtSteps(2), seed=0,
    )  # fmt: skip
    run = search.run({"messages": [("user", task.instruction)]})
    boards = {trajectory.steps[0].observation for trajectory in run.population.trajectories}
    assert len(boards) > 1, "the same move is followed by different tiles"
