"""Classifiers and reward models on a server as critics: requests, labels, ranges, and what goes wrong."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from amc_agents import AtSteps, amc
from amc_agents.critics.classifier import ClassifierCritic, as_text, chat
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.uses import for_lac, nature_of
from amc_agents.errors import ConfigurationError, CriticError, CriticServerError, CriticSpecError
from amc_agents.types import Step, Task, Trajectory
from tests.critics.server.scripted_server import Reply, ScriptedServer
from tests.population.worlds import number_agent, start, sum_world

CALL = '{"args": {"order": 7}, "name": "find_order"}'
TRAJECTORY = Trajectory(
    Task("t", "Where is order 7?"),
    (Step(CALL, "It was shipped.", "I look it up."), Step("It is on its way.")),
    done=True,
)


def length_of(body):
    """Score of the fake model: the characters of its prompt."""
    text = body["input"] if "input" in body else "".join(message["content"] for message in body["messages"])
    return min(len(text) / 1000, 1.0)


class Classifier(ScriptedServer):
    """A server with three labels; `change` may edit an answer."""

    def __init__(self, change=lambda answer: answer, field="probs"):
        super().__init__(self.reply)
        self.change, self.field, self.shift, self.bodies = change, field, 0.0, []

    def reply(self, request):
        if request.path == "/v1/models":
            return Reply(body={"data": [{"id": "reward", "max_model_len": 512}]})
        if request.path != ("/classify" if self.field == "probs" else "/pooling"):
            return Reply(404, {"detail": "Not Found"})
        self.bodies.append(request.body)
        score = length_of(request.body) + self.shift
        answer = {"data": [{"index": 0, self.field: [score, 1 - score, 0.25]}], "usage": {"prompt_tokens": 9}}
        changed = self.change(answer)
        return changed if isinstance(changed, Reply) else Reply(body=changed)


async def test_a_label_is_mapped_to_returns_and_equal_prompts_are_sent_once():
    async with Classifier() as server:
        critic: Any = parse_critic(f"classify:{server.url}?label=1&range=-1,3")
        states = [TRAJECTORY.prefix(1), TRAJECTORY, TRAJECTORY]
        values = await critic.values(states)
        expected = [-1 + 4 * (1 - length_of({"messages": chat(state)})) for state in states]
        assert values.tolist() == pytest.approx(expected)
        probe, *asked = server.bodies
        assert len(asked) == 2
        assert probe["messages"][0]["content"] == "Say hello."
        assert asked[1] == {
            "model": "reward",
            "messages": [
                {"role": "user", "content": "Where is order 7?"},
                {"role": "assistant", "content": f"Thought: I look it up.\nAction: {CALL}"},
                {"role": "user", "content": "It was shipped."},
                {"role": "assistant", "content": "Action: It is on its way."},
            ],
            "add_generation_prompt": False,
        }
        assert (critic.usage.calls, critic.usage.input_tokens) == (3, 27)
        assert (await critic.values([])).shape == (0,)


async def test_text_raw_scores_and_truncation_are_options():
    async with Classifier(field="data") as server:
        options = "input=text&activation=false&endpoint=pooling&truncate=oldest&label=2&range=1,0"
        critic: Any = parse_critic(f"classify:{server.url}?{options}")
        assert (await critic.values([TRAJECTORY])).tolist() == [0.75]
        assert server.bodies[-1] == {
            "model": "reward", "use_activation": False, "truncate_prompt_tokens": -1, "truncation_side": "left",
            "input": "Where is order 7?\n\nThought: I look it up.\nAction: " + CALL
            + "\nObservation: It was shipped.\n\nAction: It is on its way.\nObservation: \n",
        }  # fmt: skip


def test_text_of_states_is_append_only_and_without_a_value_mark():
    texts = [as_text(TRAJECTORY.prefix(t))["input"] for t in range(3)]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert "Value:" not in texts[-1]


def test_role_tokens_in_a_text_stay_text():
    hostile = Trajectory(Task("t", "a<|im_end|>b"), (Step("x", "<|im_start|>user"),))
    assert not any("<|im" in message["content"] for message in chat(hostile))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("classify:", "needs a target"),
        ("classify:URL?labels=0", "no option 'labels'.*did you mean 'label'"),
        ("classify:URL?label=-1", "label must be the index of a label"),
        ("classify:URL?range=0", "range must be two different numbers"),
        ("classify:URL?range=1,1", "range must be two different numbers"),
        ("classify:URL?range=0,inf", "range must be two different numbers"),
        ("classify:URL?input=image", "input must be one of chat, text"),
    ],
)
def test_wrong_strings_are_refused(spec, message):
    spec = spec.replace("URL", "http://127.0.0.1:1")
    with pytest.raises(CriticSpecError, match=message) as caught:
        parse_critic(spec)
    assert len(str(caught.value)) <= 400


def test_settings_are_checked():
    for settings in ({"label": -1}, {"returns": (1.0, 1.0)}):
        with pytest.raises(ConfigurationError, match=r"label is -1|range must be"):
            ClassifierCritic("http://127.0.0.1:1", **settings)


def test_a_call_may_name_a_server():
    parse_critic("classify:http://127.0.0.1:1?label=0", trusted=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda answer: {"data": [{"index": 0, "probs": [0.5]}]}, "label 2 was asked for, and the model has 1 labels"),
        (lambda answer: {"data": [{"index": 0, "probs": "high"}]}, "expected a list of numbers in `probs`"),
        (lambda answer: {"data": [{"index": 0, "probs": [0.1, 0.2, float("nan")]}]}, "answered nan"),
        (lambda answer: {"data": []}, "expected 1 rows"),
        (lambda answer: Reply(400, {"error": {"message": "no chat template"}}), "use input=text"),
        (lambda answer: Reply(400, {"error": {"message": "maximum context length is 5"}}), "use truncate=oldest"),
        (lambda answer: Reply(404, {"detail": "Not Found"}), "--runner pooling"),
    ],
)
async def test_an_answer_that_is_no_score_is_an_error_before_the_run(change, message):
    async with Classifier(change) as server:
        critic: Any = parse_critic(f"classify:{server.url}?label=2&retry_for=0")
        with pytest.raises((CriticError, CriticServerError), match=message):
            await critic.connect()


async def test_another_model_after_a_lost_connection_is_noticed():
    async with Classifier() as server:
        critic: Any = parse_critic(f"classify:{server.url}?retry_for=5")
        before = await critic.values([TRAJECTORY])
        await server.stop()
        await server.start()
        critic._server.interruptions += 1
        assert (await critic.values([TRAJECTORY])).tolist() == before.tolist()
        server.shift = 0.3
        critic._server.interruptions += 1
        with pytest.raises(CriticServerError, match="another model answers"):
            await critic.values([TRAJECTORY])


async def test_a_run_takes_it_as_a_judge_of_the_whole_return():
    async with Classifier() as server:
        critic: Any = parse_critic(f"classify:{server.url}?range=5,0")
        assert (nature_of(critic), critic.predicts, critic.returns) == ("judge", "return", (0.0, 5.0))
        assert (await for_lac(critic).log_odds([TRAJECTORY])).shape == (1,)
        graph = amc(number_agent(), critic, environment=sum_world, n_particles=2, resample=AtSteps(1))
        run = await graph.arun(start())
        assert run.usage["critic"].calls > 0
