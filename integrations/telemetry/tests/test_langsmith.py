"""What LangSmith receives: the place of every model call, and the values as feedback."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest
from amc_agents_telemetry.langsmith import LangSmithFeedback
from langchain_core.tracers.langchain import LangChainTracer

from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps
from tests.arguments import arguments
from tests.population.worlds import ReturnSoFar, number_agent, start, sum_world


class FakeClient:
    """Keeps what a client of LangSmith would send."""

    def __init__(self):
        self.created, self.feedback, self.projects, self.threads = {}, [], {}, set()

    def create_run(self, **run):
        self.created[run["id"]] = run

    def update_run(self, **_): ...

    def read_project(self, *, project_name):
        return SimpleNamespace(id=self.projects.setdefault(project_name, uuid4()))

    def create_feedback(self, run_id, key, **given):
        self.threads.add(threading.current_thread().name)
        self.feedback.append({"run_id": run_id, "key": key, **given})


@pytest.fixture(params=["sync", "async"])
def traced(request):
    """A run under LangSmith's tracer: (run, client)."""

    def play(*, critic=None, **settings):
        client = FakeClient()
        feedback = LangSmithFeedback(client)
        tracer = LangChainTracer(client=client, project_name="search")
        options = {"environment": sum_world, "n_particles": 4, "resample": AtSteps(1, 2), "seed": 1}
        graph = amc(number_agent(), critic or ReturnSoFar(3.0), **arguments(**{**options, **settings}))
        config = {"callbacks": [tracer, feedback]}
        run = graph.run(start(), config) if request.param == "sync" else asyncio.run(graph.arun(start(), config))
        assert feedback.flush(60)
        return run, client

    return play


def metadata(run):
    return run["extra"]["metadata"]


def test_every_model_call_names_its_place(traced):
    run, client = traced()
    calls = [each for each in client.created.values() if each["run_type"] == "llm"]
    assert len(calls) == run.usage["policy"].calls
    places = [metadata(each) for each in calls]
    assert len({place["amc_run"] for place in places}) == 1
    assert {(place["particle"], place["step"]) for place in places} == {
        (i, step) for i in range(4) for step in range(4)
    }
    sources = {point.step: point.ancestors.tolist() for point in run.history[:2]}
    for place in places:
        forks = [step for step, each in sources.items()
                 if step <= place["step"] and each.count(each[place["particle"]]) > 1]  # fmt: skip
        assert place.get("ancestor") == (sources[max(forks)][place["particle"]] if forks else None)


def test_each_value_is_feedback_on_the_particles_run(traced):
    run, client = traced()
    [root] = [each["id"] for each in client.created.values() if each.get("parent_run_id") is None]
    told = {}
    for each in client.feedback:
        particle = metadata(client.created[each["run_id"]])["particle"]
        told.setdefault(particle, []).append(each["score"])
        assert (each["key"], each["trace_id"]) == ("amc_value", root)
        assert each["session_id"] == client.projects["search"]
    assert told == {slot: [point.values[slot] for point in run.history] for slot in range(4)}
    assert client.threads == {"amc-telemetry"}, "no agent waits for the request"


def test_a_value_that_is_not_known_is_not_sent(traced):
    class Fails:
        async def values(self, trajectories):
            raise ConnectionError("gone")

    _, client = traced(critic=Fails(), rewards=False, on_critic_error="uniform")
    assert client.feedback == []


def test_feedback_that_cannot_be_sent_is_logged(caplog):
    class Down(FakeClient):
        def create_feedback(self, *_, **__):
            raise ConnectionError("the service is down \x1b[2J")

    feedback = LangSmithFeedback(Down())
    feedback.on_particle_value(1.0, run_id=uuid4(), trace_id=None, project=None)
    assert feedback.flush(60)
    assert "a span or a feedback was lost: ConnectionError: the service is down \\u001b[2J" in caplog.text


def test_without_a_tracer_the_trace_is_unknown():
    client = FakeClient()
    feedback = LangSmithFeedback(client)
    graph = amc(number_agent(), ReturnSoFar(), environment=sum_world, n_particles=2, resample=AtSteps(1), seed=1)
    run = graph.run(start(), {"callbacks": [feedback]})
    assert feedback.flush(60)
    assert max(each["score"] for each in client.feedback) == max(point.values.max() for point in run.history)
    assert {(each["trace_id"], each["session_id"]) for each in client.feedback} == {(None, None)}
    assert all(isinstance(each["run_id"], UUID) for each in client.feedback)
