"""What a trajectory says of its end, and what a limit of steps does not change."""

from __future__ import annotations

from dataclasses import replace

from amc_agents.critics.judge.style import ZERO_SHOT
from amc_agents.critics.render import DIALOGUE, PLAIN
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.uses import OddsOfValue
from amc_agents.envs.crafting import generate_task
from amc_agents.training.dataset import LoggedTrajectory, data_hash, read_trajectories, write_shard
from amc_agents.training.value.targets import returns_to_come
from amc_agents.types import Step, Task, Trajectory

ENDED = Trajectory(
    Task("t", generate_task(1, "docs").instruction),
    (Step("inventory", "Inventory: You are not carrying anything."), Step("get 1 clay", "Got 1 clay", reward=0.5)),
    done=True,
)
CUT = replace(ENDED, truncated=True)


def test_only_the_whole_of_a_cut_trajectory_was_cut():
    assert CUT.prefix(2).truncated
    assert not CUT.prefix(1).truncated
    assert not CUT.extended(Step("go")).truncated
    assert Trajectory(ENDED.task).extended(Step("go"), done=True, truncated=True).truncated


def test_a_limit_is_no_part_of_what_makes_trajectories_equal():
    assert CUT == ENDED
    assert hash(CUT) == hash(ENDED)


def test_a_limit_changes_no_prompt_no_dataset_and_no_target(tmp_path):
    for prompt_format in (DIALOGUE, PLAIN):
        assert prompt_format.segments(CUT) == prompt_format.segments(ENDED)
    assert ZERO_SHOT.prompt(CUT) == ZERO_SHOT.prompt(ENDED)
    assert data_hash([CUT]) == data_hash([ENDED])
    assert returns_to_come(CUT).tolist() == returns_to_come(ENDED).tolist() == [0.5, 0.5, 0.0]
    write_shard(tmp_path / "cut", [LoggedTrajectory(CUT, 0)])
    write_shard(tmp_path / "ended", [LoggedTrajectory(ENDED, 0)])
    assert read_trajectories(tmp_path / "cut") == read_trajectories(tmp_path / "ended") == [ENDED]


async def test_a_limit_changes_no_value():
    critic = parse_critic("embedded:crafting")
    cut, ended = await critic.values([CUT, ENDED])
    assert cut == ended
    odds = OddsOfValue(critic, (0.0, 1.0))
    cut, ended = await odds.log_odds([CUT, ENDED])
    assert cut == ended
