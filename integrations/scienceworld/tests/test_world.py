import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scienceworld", reason="the package scienceworld is not installed")
if shutil.which("java") is None:
    pytest.skip("ScienceWorld needs Java", allow_module_level=True)

from amc_agents_scienceworld import Engine, ScienceWorld, engine, generate_tasks, gold_path, task_of, variations
from amc_agents_scienceworld.world import instruction

from amc_agents.errors import ConfigurationError, EnvironmentStateError, ReplayDivergence, WorldError
from amc_agents.testing import check_environment
from amc_agents.types import Task

LIFESPAN = "scienceworld/lifespan-longest-lived/93"
PLANTS = "scienceworld/mendelian-genetics-known-plant/90"


GOLD = {
    record["task"]: record
    for record in map(json.loads, (Path(__file__).with_name("gold.jsonl")).read_text(encoding="utf-8").splitlines())
}
"""Gold paths of two test variations of every task, made by record_gold.py."""
SHORT = sorted(GOLD, key=lambda name: len(GOLD[name]["actions"]))[:6]


async def started(name=LIFESPAN, seed=0):
    made = ScienceWorld(seed)
    return made, await made.reset(task_of(name))


@pytest.mark.parametrize(
    "name",
    [
        "scienceworld/find-non-living-thing/225",
        pytest.param(LIFESPAN, marks=pytest.mark.thorough),
        pytest.param("scienceworld/power-component/15", marks=pytest.mark.thorough),
    ],
)
async def test_the_contract_of_an_environment_is_kept(name):
    await check_environment(ScienceWorld, task_of(name), GOLD[name]["actions"])


async def test_the_instruction_is_actions_goal_and_surroundings():
    task = task_of(LIFESPAN)
    made, first = await started()
    await made.close()
    actions, goal, look = task.instruction.split("\n")[:3]
    assert first.observation == task.instruction
    assert actions.startswith("Actions: activate OBJ, close OBJ")
    assert "reset task" not in actions
    assert goal.startswith("Goal: Your task is to find the animal with the longest life span.")
    assert look.startswith("This room is called the ")


async def follows_its_gold_path(name, record):
    made, _ = await started(name)
    answers = [await made.step(action) for action in record["actions"]]
    await made.close()
    scores = [round(100 * score) for score in itertools.accumulate(answer.reward for answer in answers)]
    assert (name, scores, answers[-1].done) == (name, record["scores"], record["done"])


@pytest.mark.parametrize("name", SHORT)
async def test_a_short_gold_path_earns_the_recorded_scores(name):
    await follows_its_gold_path(name, GOLD[name])


@pytest.mark.thorough
async def test_the_gold_paths_of_sixty_test_variations_earn_the_recorded_scores():
    assert len(GOLD) == 60
    for name, record in GOLD.items():
        await follows_its_gold_path(name, record)


async def test_the_gold_path_is_the_engines_and_the_expert_follows_it():
    made, _ = await started()
    answer = None
    for action in gold_path("lifespan-longest-lived", 93)[:-1]:
        assert made.world.expert_action() == action
        await made.step("look around")  # Does not advance the expert, unless it is on the path.
        answer = await made.step(made.world.expert_action())
    assert made.world.random_action(np.random.default_rng(0)) == made.world.random_action(np.random.default_rng(0))
    await made.close()
    assert answer.done


async def test_rewards_add_up_to_the_score_and_success_pays_one():
    name = "scienceworld/power-component/15"
    made, _ = await started(name)
    rewards = []
    for action in GOLD[name]["actions"]:
        answer = await made.step(action)
        rewards.append(answer.reward)
    await made.close()
    assert answer.terminated
    assert sum(rewards) == pytest.approx(1.0)
    assert len([reward for reward in rewards if reward > 0]) > 1  # sub-goals pay as they are reached


async def test_a_fatal_mistake_ends_the_episode_with_return_minus_one():
    made, _ = await started("scienceworld/find-plant/225")
    answers = [await made.step("open door to art studio"), await made.step("open door")]
    answers.append(await made.step("focus on agent"))
    await made.close()
    assert answers[-1].terminated
    assert sum(answer.reward for answer in answers) == pytest.approx(-1.0)


async def test_looking_around_and_unknown_actions_change_nothing():
    made, _ = await started()
    first = await made.step("look around")
    refused = await made.step("fly to the moon")
    again = await made.step("look around.")
    await made.close()
    assert refused.observation == "No known action matches that input."
    assert (first, refused.reward) == (again, 0.0)


async def test_a_fork_has_its_own_future_and_seeds_decide_it():
    actions = GOLD[PLANTS]["actions"][:60]
    made, _ = await started(PLANTS)
    for action in actions[:20]:
        await made.step(action)
    twins = [await made.fork(seed) for seed in (1, 1, 2, 3)]
    futures = [[await twin.step(action) for action in actions[20:]] for twin in twins]
    for each in (made, *twins):
        await each.close()
    assert futures[0] == futures[1]
    assert futures[2] != futures[0] or futures[3] != futures[0]


async def test_many_worlds_of_a_jvm_do_not_disturb_each_other():
    actions = GOLD[PLANTS]["actions"][:30]
    alone, _ = await started(PLANTS, seed=5)
    expected = [await alone.step(action) for action in actions]
    one, _ = await started(PLANTS, seed=5)
    other, _ = await started(PLANTS, seed=6)
    seen = []
    for action in actions:
        seen.append(await one.step(action))
        await other.step("look around")
        await other.step(action)
    for each in (alone, one, other):
        await each.close()
    assert seen == expected


async def test_a_divergence_of_a_replay_names_the_step():
    made, _ = await started()
    await made.step("look around")
    made._answers[1] = await made.step("inventory")
    with pytest.raises(ReplayDivergence, match="look around"):
        await made.fork(1)
    await made.close()


def test_tasks_of_a_split_cover_all_kinds_and_splits_share_none():
    tasks = {split: list(generate_tasks(31, split)) for split in ("train", "dev", "test")}
    assert [len({task.payload.name for task in of}) for of in tasks.values()] == [30] * 3
    assert len({task.id for of in tasks.values() for task in of}) == 93
    assert sum(len(variations(name)["test"]) for name in {task.payload.name for task in tasks["test"]}) == 1819


def test_a_task_is_restored_from_its_id():
    task = next(generate_tasks(1, "test", 3, simplifications="easy"))
    assert task.id.endswith("/easy")
    assert task_of(task.id) == task


def test_what_does_not_exist_is_refused():
    with pytest.raises(ConfigurationError, match="unknown ScienceWorld task 'fly'"):
        task_of("scienceworld/fly/0")
    with pytest.raises(ConfigurationError, match="boil has the variations 0 to 29, got 30"):
        task_of("scienceworld/boil/30")
    with pytest.raises(ConfigurationError, match="unknown simplification 'trivial'"):
        task_of("scienceworld/boil/0/trivial")
    with pytest.raises(ConfigurationError, match="expected the id of a ScienceWorld task"):
        task_of("boil")
    with pytest.raises(ConfigurationError, match="expected a split of train, dev, test"):
        generate_tasks(1, "validation")


async def test_a_task_of_another_world_is_refused():
    with pytest.raises(EnvironmentStateError, match="ScienceWorldTask payload, got NoneType"):
        await ScienceWorld().reset(Task("other", "do something"))


def test_an_error_in_the_jvm_is_an_error_of_the_world():
    simulation = engine().load("boil", 0)
    with pytest.raises(WorldError, match="the ScienceWorld engine failed to noSuchMethod"):
        simulation.ask("noSuchMethod")
    simulation.close()


def test_a_full_jvm_refuses_a_world_until_another_is_closed(monkeypatch):
    owner = engine()
    monkeypatch.setattr(owner, "capacity", owner._n_worlds + 1)
    first = owner.load("lifespan-longest-lived", 93)
    with pytest.raises(ConfigurationError, match=r"AMC_SCIENCEWORLD_MEMORY_MB \(11 MB for each world\)"):
        owner.load("lifespan-longest-lived", 93)
    first.close()
    owner.load("lifespan-longest-lived", 93).close()


def test_a_released_world_is_loaded_again_and_nothing_of_its_last_task_is_left(monkeypatch):
    owner = engine()

    def play(name: str, variation: int, actions: tuple[str, ...]) -> list[object]:
        world = owner.load(name, variation, "easy" if name == "boil" else "")
        seen = [instruction(world), *(world.step(action, 7) for action in actions)]
        world.close()
        return seen

    path = gold_path("find-plant", 0)
    monkeypatch.setattr(owner, "_released", [])
    first = play("find-plant", 0, path)
    monkeypatch.setattr(owner, "_new_server", lambda: pytest.fail("a new world was made"))
    # The second task leaves a fatal mistake, another simplification and a question that waits for an answer.
    play("boil", 0, ("focus on kitchen", "open door", "wait"))
    assert play("find-plant", 0, path) == first


@pytest.mark.parametrize("memory", ["a lot", "70", "-512", "51.2"])
def test_an_impossible_memory_is_refused_before_java_starts(monkeypatch, memory):
    monkeypatch.setenv("AMC_SCIENCEWORLD_MEMORY_MB", memory)
    with pytest.raises(ConfigurationError, match="expected MB of memory, at least 71"):
        Engine()


def test_the_memory_decides_how_many_worlds_there_may_be(monkeypatch):
    monkeypatch.setenv("AMC_SCIENCEWORLD_MEMORY_MB", "71")
    one = Engine()
    assert one.capacity == 1
    one._gateway.shutdown()
    assert engine().capacity == 41
