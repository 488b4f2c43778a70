from __future__ import annotations

from amc_agents.bench.workshop_critic import WorkshopCritic
from amc_agents.envs.workshop import WorkshopWorld, generate_task, solution
from amc_agents.testing.checks import check_critic
from amc_agents.types import Step, Task, Trajectory

TEXT = """Crafting commands:
craft 1 rod using 1 clay
craft 1 rod using 1 flint

Stock: 1 clay, 1 flint

Goal: craft rod without flint."""


async def trajectory(*actions, text=TEXT):
    world, task, steps = WorkshopWorld(), WorkshopCritic().workshop_task(Trajectory(Task("x", text), ())), []
    await world.reset(task)
    for action in actions:
        answer = await world.step(action)
        steps.append(Step(action, answer.observation, reward=answer.reward))
    return Trajectory(Task("x", text), tuple(steps), done=bool(steps) and answer.done)


async def test_states_are_graded_by_the_steps_that_can_still_be_wasted():
    plays = [
        await trajectory(),
        await trajectory("get 1 clay"),
        await trajectory("inventory"),
        await trajectory(*["inventory"] * 18),
        await trajectory(*["inventory"] * 19),
    ]
    assert (await WorkshopCritic().values(plays)).tolist() == [0.95, 0.95, 0.925, 0.5, 0.0]


async def test_dead_ends_and_hidden_failures_have_no_value_and_a_success_has_1():
    plays = [
        await trajectory("get 1 clay", "craft 1 rod using 1 clay"),
        await trajectory("get 1 flint", "craft 1 rod using 1 flint"),
        await trajectory("get 1 clay", "craft 1 gate using 1 clay"),
    ]
    assert [play.steps[-1].observation for play in plays] == [*["Crafted 1 minecraft:rod"] * 2, "Crafted junk"]
    assert [play.done for play in plays] == [True, True, False]
    assert (await WorkshopCritic().values(plays)).tolist() == [1.0, 0.0, 0.0]


async def test_actions_are_judged_by_the_steps_they_waste():
    plays = [
        await trajectory("get 1 clay"),
        await trajectory("inventory"),
        await trajectory("get 1 clay", "craft 1 rod using 1 clay"),
        await trajectory("get 1 flint", "craft 1 rod using 1 flint"),
    ]
    assert (await WorkshopCritic().log_odds(plays)).tolist() == [0.0, -5.0, 0.0, -250.0]


async def test_the_critic_keeps_the_contract():
    task = generate_task(0, "docs", "both")
    actions = solution(task.payload).actions
    plays = [await trajectory(*actions[:t], text=task.instruction) for t in (0, 2, len(actions))]
    await check_critic(WorkshopCritic(), plays)
