"""A graph made by `amc` served by `langgraph dev`: every stream comes to its end, and the run can be read back."""

from __future__ import annotations

import json

import pytest

from tests.langgraph_server import langgraph_dev

pytest.importorskip("langgraph_api", reason="needs langgraph-cli[inmem], of the [dev] extra")

SERVED = '''
"""What the server serves: tasks and states that JSON cannot hold as they are."""
from dataclasses import dataclass, field

from amc_agents import AtSteps, Task, amc
from tests.population.worlds import ReturnSoFar, SumWorld, number_agent


class Level:
    """An object of a user's."""


@dataclass
class Setup:
    places: dict = field(default_factory=lambda: {("a", 1): float("nan")})
    level: Level = field(default_factory=Level)
    largest: int = 2**100
    broken: str = "\\ud800"
    itself: list = field(default_factory=list)


setup = Setup()
setup.itself.append(setup)
task = Task("count", "Say numbers.", payload=setup)
graph = amc(
    number_agent(),
    ReturnSoFar(),
    environment=lambda state: (SumWorld(), task),
    n_particles=4,
    resample=AtSteps(2),
    seed=1,
)
'''


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    (folder / "served.py").write_text(SERVED)
    (folder / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": {"amc": "./served.py:graph"}}))
    with langgraph_dev(folder, repository) as client:
        yield client


def streamed(server, modes, **request):
    """The (event, data) of a run, to its end."""
    body = {
        "assistant_id": "amc",
        "input": {"messages": [{"role": "user", "content": "Say numbers."}]},
        "stream_mode": modes,
        **request,
    }
    found = []
    with server.stream("POST", "/runs/stream", json=body) as answer:
        assert answer.status_code == 200
        event = ""
        for line in answer.iter_lines():
            if line.startswith("event:"):
                event = line.removeprefix("event:").strip()
            elif line.startswith("data:"):
                found.append((event, json.loads(line.removeprefix("data:"))))
    return found


@pytest.fixture(scope="module")
def events(server):
    return streamed(server, ["custom", "values", "updates", "messages"])


def test_every_stream_comes_to_its_end(events):
    kinds = {event for event, _ in events}
    assert "error" not in kinds, events[-1]
    assert {"custom", "values", "updates", "messages/complete"} <= kinds
    nodes = [next(iter(data)) for event, data in events if event == "updates"]
    assert (nodes[0], nodes[-1]) == ("init", "finalize")
    messages = [data for event, data in events if event == "values"][-1]["messages"]
    assert len(messages) == 9
    custom = [data for event, data in events if event == "custom"]
    assert [data["type"] for data in custom] == ["amc.weigh", "amc.resample", "amc.weigh", "amc.run"]


def test_a_client_reads_the_run_back(events):
    run = [data for event, data in events if event == "custom"][-1]["run"]
    assert run["best"]["return_"] == max(run["population"]["returns"]) > 0
    assert len(run["population"]["trajectories"]) == len(run["outputs"]) == 4
    assert run["history"][0]["ancestors"] is not None
    assert run["usage_by_model"]["policy"][""]["calls"] == run["usage"]["policy"]["calls"]
    assert run["config"]["critic"] == "ReturnSoFar"
    assert run["seed"] == 1
    assert run["best_output"]["messages"][-2]["type"] == "ai"
    payload = run["best"]["task"]["payload"]
    assert payload["places"] == {"['a', 1]": None}
    assert payload["level"].endswith("Level>")


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["debug", "tasks", "checkpoints", "messages-tuple"])
def test_the_modes_of_tools_come_to_their_end(server, mode):
    events = streamed(server, [mode])
    assert "error" not in {event for event, _ in events}, events[-1]
    assert "ParticleSystem" not in str(events)


@pytest.mark.thorough  # the server polls its queue of runs once a second
def test_a_threads_runs_and_state_can_be_read(server):
    thread = server.post("/threads", json={}).json()["thread_id"]
    body = {"assistant_id": "amc", "input": {"messages": [{"role": "user", "content": "Say numbers."}]}}
    answer = server.post(f"/threads/{thread}/runs/wait", json=body)
    assert answer.is_success, answer.text
    state = server.get(f"/threads/{thread}/state").json()
    assert len(state["values"]["messages"]) == 9


@pytest.mark.thorough
def test_a_served_run_is_replayed_from_a_durable_point(server):
    thread = server.post("/threads", json={}).json()["thread_id"]

    def events(**request):
        body = {"assistant_id": "amc", "stream_mode": ["custom"], **request}
        lines = server.post(f"/threads/{thread}/runs/stream", json=body).text.splitlines()
        data = [json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")]
        return [event for event in data if isinstance(event, dict) and "type" in event]

    whole = events(input={"messages": [{"role": "user", "content": "Say numbers."}]})
    assert [event["type"] for event in whole] == ["amc.weigh", "amc.resample", "amc.weigh", "amc.run"]
    history = server.get(f"/threads/{thread}/history", params={"limit": 20}).json()
    resampled = next(state for state in history if state["next"] == ["propagate"])
    again = events(input=None, checkpoint={"checkpoint_id": resampled["checkpoint"]["checkpoint_id"]})
    assert [event["type"] for event in again] == ["amc.weigh", "amc.run"]
    returns = [run["run"]["population"]["returns"] for run in (whole[-1], again[-1])]
    assert returns[0] == returns[1]
