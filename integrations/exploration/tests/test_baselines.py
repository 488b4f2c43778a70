"""Reflexion, in-context RL and in-context policy iteration, over scripted models."""

from __future__ import annotations

import re

import numpy as np
import pytest

from amc_agents.errors import ConfigurationError, RoleError
from amc_agents.types import Step, Task, Trajectory
from amc_agents_exploration.baselines import InContextPolicyIteration, InContextRl, Reflexion
from amc_agents_exploration.episodic import play_episode
from amc_agents_exploration.worlds import ExplorationWorld, episodes, lock_task

TASK = lock_task(3)


def answering(say, prompts=None):
    async def answers(batch):
        if prompts is not None:
            prompts.extend(batch)
        return [say(prompt) if callable(say) else say for prompt in batch]

    return answers


async def trial(agent, n_episodes, horizon=3):
    rng = np.random.default_rng(0)
    return [
        await play_episode(ExplorationWorld(), episode, agent, rng, horizon=horizon)
        for episode in episodes(TASK, n_episodes)
    ]


async def test_reflexion_shows_all_advice():
    prompts, numbers = [], iter(range(9))
    agent = Reflexion(
        answering("Action: 1", prompts), answering(lambda prompt: f"Well.\nAdvice: number {next(numbers)}")
    )
    await trial(agent, 3)
    assert agent.advice == ["number 0", "number 1", "number 2"]
    shown = [re.search(r"<advice>\n(.*)\n</advice>", prompt, re.DOTALL)[1] for prompt in prompts]
    assert shown == ["None."] * 3 + ["- number 0"] * 3 + ["- number 0\n- number 1"] * 3
    failing = Reflexion(answering("Action: 1"), answering("no"))
    with pytest.raises(RoleError, match="reflection did not answer"):
        await trial(failing, 1)


async def test_in_context_rl_shows_each_episode_with_probability_p():
    for keep in (0.0, 0.3, 1.0):
        prompts = []
        agent = InContextRl(answering("Action: 1", prompts), keep=keep)
        await trial(agent, 30)
        shown = np.array([len(re.findall(r"^Episode \d+$", prompt, re.MULTILINE)) for prompt in prompts])
        there = np.repeat(np.arange(30), 3)
        error = np.sqrt(max((there * keep * (1 - keep)).sum(), 1e-9))
        assert abs(shown.sum() - keep * there.sum()) <= 4 * error
        if keep == 0.3:
            same_episode = shown.reshape(30, 3)
            assert (same_episode[20:].std(axis=1) > 0).any(), "drawn anew at each step"
    assert "Observation: Place 1: 1" in agent.past[0]
    with pytest.raises(ConfigurationError, match="0 to 1"):
        InContextRl(answering(""), keep=1.5)


class Line:
    """A corridor: going right from state k leads to k + 1, and the step into 3 pays 1."""

    @staticmethod
    def state(prompt):
        told = re.search(r"<state>\n(.*)\n</state>", prompt)[1]
        return int(told) if told.isdigit() else 0

    @classmethod
    def after(cls, prompt):
        action = re.search(r"takes this action: (\w+)", prompt)[1]
        return cls.state(prompt) + (1 if action == "right" else -1)

    def transition(self, prompt):
        return f"Observation: {max(self.after(prompt), 0)}"

    def reward(self, prompt):
        return f"Reward: {float(self.after(prompt) == 3)}"


async def test_policy_iteration_takes_the_best_imagined_action():
    line, rounds = Line(), []

    async def rollout(prompts):
        rounds.append(len(prompts))
        return ["Action: right"] * len(prompts)

    agent = InContextPolicyIteration(
        rollout, answering(line.transition), answering(line.reward), horizon=4, actions=("left", "right")
    )
    await agent.begin(Task("line", "Walk."), np.random.default_rng(0))
    state = Trajectory(Task("line", "Walk."))
    firsts = {(await agent.act(state)).action for _ in range(20)}
    assert firsts == {"left", "right"}, "nothing was seen, so it guesses"
    assert not rounds
    state = state.extended(Step("right", "1"))
    await agent.observe(state)
    # Three steps are left: right, right pays; left, right, right does not.
    assert {(await agent.act(state)).action for _ in range(5)} == {"right"}
    assert rounds == [2, 2] * 5
    state = state.extended(Step("right", "2")).extended(Step("left", "1"))
    await agent.observe(state)
    # One step is left, and neither pays: ties are broken at random.
    assert {(await agent.act(state)).action for _ in range(20)} == {"left", "right"}


async def test_policy_iteration_shows_samples_of_what_was_seen():
    prompts = []
    agent = InContextPolicyIteration(
        answering("Action: 1"), answering("Observation: x"), answering("Reward: 0", prompts), horizon=3, n_examples=4
    )
    await trial(agent, 3)
    shown = [prompt.split("<examples>\n")[1].split("\n</examples>")[0] for prompt in prompts]
    assert max(examples.count("State:") for examples in shown) == 4
    assert any("State: The episode begins." in examples for examples in shown)
    assert len({examples for examples in shown if examples.count("State:") == 4}) > 1
    broken = InContextPolicyIteration(
        answering("Action: 1"), answering("Observation: x"), answering("Reward: much"), horizon=3
    )
    with pytest.raises(RoleError, match="reward function"):
        await trial(broken, 2)
