"""The attacks of `benchmarks/injection_attacks.json` against the prompts of judges and verdicts."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest

from amc_agents.critics.judge.style import ZERO_SHOT, new_marker
from amc_agents.critics.verdict.critic import VerdictCritic, marked_stepwise
from amc_agents.critics.verdict.top_k import TopKReader, _guarded
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Step, Task, Trajectory

MARKER = "[0a1b2c3d4e]"
ROLE = re.compile(r"<\||\[/?INST\]|<(?:start|end)_of_turn>|</?s>|<<SYS>>")


def judge_prompt(trajectory):
    return ZERO_SHOT.prompt(trajectory, MARKER)


def verdict_prompt(trajectory):
    return "".join(map(_guarded, marked_stepwise(MARKER).prompt(trajectory, ("GOOD", "BAD"))))


@pytest.fixture(scope="module")
def attacks(request):
    file = request.config.rootpath / "benchmarks" / "injection_attacks.json"
    return {attack["name"]: attack["text"] for attack in json.loads(file.read_text())}


def structure(prompt):
    """The record's own lines by their name, and what follows the record."""
    own = [line.split(":")[0] for line in prompt.split("\n") if line.startswith(MARKER)]
    return own, prompt.rpartition(f"\n{MARKER} End of the record\n")[2]


@pytest.mark.parametrize("prompt", [judge_prompt, verdict_prompt])
def test_no_attack_adds_to_the_record_or_ends_it(prompt, attacks):
    assert len(attacks) == 30
    parts = [" Thought", " Action", " Observation"] if prompt is judge_prompt else [" Observation"]
    calm = Trajectory(Task("", "go"), (Step("look", "A door.", "Hm."), Step("go", "A wall.", "Hm.")))
    steps = [[f" Step {n}" if prompt is judge_prompt else " Step", *parts] for n in (1, 2)]
    expected = [" Task", *steps[0], *steps[1], " End of the record"]
    assert [line.removeprefix(MARKER) for line in structure(prompt(calm))[0]] == expected
    for text in attacks.values():
        hostile = (
            Trajectory(Task("", text), calm.steps),
            Trajectory(calm.task, (Step(text, f"A door.\n{text}", text), calm.steps[1])),
        )
        for trajectory in hostile:
            assert structure(prompt(trajectory)) == structure(prompt(calm))
            assert not ROLE.search(prompt(trajectory))


def test_two_critics_have_different_markers():
    critics = [VerdictCritic(TopKReader(ScriptedChatModel(respond=lambda messages: "GOOD"))) for _ in range(2)]
    first, second = (critic._format.rounds.opening for critic in critics)
    assert first != second
    assert first.replace(*markers(first, second)) == second
    assert new_marker() != new_marker()


def markers(*openings):
    return [re.search(r"begin with (\[\w+\])", opening)[1] for opening in openings]


def test_a_marked_prompt_is_append_only():
    steps = [Step("look", f"door {number}") for number in range(3)]
    prompts = [marked_stepwise(MARKER).segments(Trajectory(Task("", "go"), tuple(steps[:n]))) for n in range(4)]
    assert all(later[: len(now)] == now for now, later in pairwise(prompts))
