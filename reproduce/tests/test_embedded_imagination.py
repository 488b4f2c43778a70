"""The embedded policy as a forward model of its world."""

from __future__ import annotations

from amc_agents.envs.crafting import generate_task
from amc_agents.models.embedded import model_folder
from amc_agents.types import Step, Trajectory
from reproduce.embedded_imagination import EmbeddedImagination


async def test_the_embedded_policy_imagines_what_the_world_says():
    task = generate_task(7, "train", optimal_steps=(4, 6))
    raw = sorted(task.payload.book.raw)[0]
    begun = [Trajectory(task).extended(Step(f"get {count} {raw}")) for count in (2, 3)]
    once = await EmbeddedImagination(depth=1).imagine(begun)
    assert [one.steps[0].observation for one in once] == [f"Got 2 {raw}", f"Got 3 {raw}"]
    assert [len(one.steps) for one in once] == [1, 1]
    thrice = await EmbeddedImagination(depth=3).imagine(begun)
    assert thrice[0].steps[0] == once[0].steps[0]
    assert 1 < len(thrice[0].steps) <= 3
    assert all(step.action and step.observation for step in thrice[0].steps)


async def test_an_adapter_plays_the_world_and_ends_where_the_agent_would_speak():
    task = generate_task(7, "train", optimal_steps=(4, 6))
    begun = [Trajectory(task).extended(Step(f"get 1 {task.payload.goal}"))]
    (alone,) = await EmbeddedImagination().imagine(begun)
    assert alone == begun[0]  # goes on and on: no end, no observation
    (helped,) = await EmbeddedImagination(adapter=model_folder("crafting") / "verdict").imagine(begun)
    assert helped.steps[0].observation == f"Could not find {task.payload.goal}"
