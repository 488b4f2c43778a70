"""Notes of requests and steps keep nothing alive that their spans do not need."""

from __future__ import annotations

import gc
import weakref
from uuid import uuid4

import pytest
from amc_agents_telemetry import otel_requests
from amc_agents_telemetry.otel_requests import RequestSpans
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from amc_agents.runtime.metering import PolicyMeter, counting_requests, observe_requests
from amc_agents.runtime.tracing import traced_step
from amc_agents.types import TimeStep
from amc_agents.usage import Meter

FACTS = {"model_name": "m-1", "finish_reason": "stop", "logprobs": {"content": ["large"]}}
TOKENS = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}


class Text(str):
    """A text with weak references."""

    __slots__ = ("__weakref__",)


class Held(otel_requests.Recorder):
    """Holds the notes back, until `make` makes their spans."""

    def __init__(self, seen, *, content=False):
        super().__init__(
            seen.provider.get_tracer("test"), seen.logger_provider.get_logger("test"), self, content=content
        )
        self.notes = []

    def add(self, work, *arguments):
        self.notes.append((work, arguments))

    def make(self):
        for work, arguments in self.notes:
            work(*arguments)


def an_answer():
    message = AIMessage("yes", usage_metadata=TOKENS, response_metadata=FACTS)
    return LLMResult(generations=[[ChatGeneration(message=message)]])


def a_request(handler, tags=()):
    """Make a request and return weak references to what is received with it."""
    run_id, answer, question = uuid4(), an_answer(), HumanMessage("really?")
    details = {"metadata": {"ls_model_name": "m", "thread_id": "t"}, "tags": ["seq:step:1", *tags], "name": "M"}
    handler.on_chat_model_start({}, [[question]], run_id=run_id, **details)
    handler.on_llm_end(answer, run_id=run_id)
    return [weakref.ref(each) for each in (answer, answer.generations[0][0].message, question)]


@pytest.mark.thorough
@pytest.mark.parametrize(("role", "tags"), [("policy", []), ("world model", ["world model", "critic"])])
@pytest.mark.parametrize("metered", [True, False], ids=["by a meter", "alone"])
def test_the_answer_is_let_go_before_its_span_is_made(seen, metered, role, tags):
    held = Held(seen)
    spans = RequestSpans(held, {})
    with counting_requests(PolicyMeter(Meter())):
        before = observe_requests(spans)
        kept = a_request(PolicyMeter(Meter()) if metered else spans, tags)
        observe_requests(before)
    gc.collect()
    assert [each() for each in kept] == [None] * 3
    held.make()
    [span] = seen.spans
    said = dict(span.attributes)
    assert (span.name, said["amc.role"]) == ("chat m", role)
    assert (said["gen_ai.response.model"], said["gen_ai.response.finish_reasons"]) == ("m-1", ("stop",))
    assert (said["gen_ai.usage.input_tokens"], said["llm.token_count.total"]) == (3, 5)
    assert said["gen_ai.usage.output_tokens"] == said["llm.token_count.completion"] == 2


def test_content_is_kept_until_its_span_is_made(seen):
    held = Held(seen, content=True)
    kept = a_request(RequestSpans(held, {}))
    assert all(each() is not None for each in kept)
    held.make()
    [span] = seen.spans
    assert "really?" in span.attributes["gen_ai.input.messages"]
    assert span.attributes["output.value"] == "yes"


async def test_the_observation_of_a_world_is_let_go(seen, monkeypatch):
    from amc_agents.runtime import tracing

    held, kept = Held(seen), []
    monkeypatch.setattr(tracing._tracer, "_recorder", held)

    async def step(action):
        observation = Text("there")
        kept.append(weakref.ref(observation))
        return TimeStep.termination(observation, 0.5)

    await traced_step(step, "go")
    gc.collect()
    assert kept[0]() is None
    held.make()
    [span] = seen.spans
    assert (span.attributes["amc.reward"], span.attributes["amc.done"]) == (0.5, True)
