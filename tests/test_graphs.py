"""The deployable graphs, served by `langgraph dev` without a browser and without the internet."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from amc_agents.envs.crafting import generate_task
from tests.langgraph_server import OFFLINE, langgraph_dev

pytest.importorskip("langgraph_api", reason="needs langgraph-cli[inmem], of the [dev] extra")
FOLDER = Path(__file__).parents[1] / "graphs"
PLAIN, DEEP = "langgraph.json", "langgraph.deep.json"
"""Configurations without and with the graph that needs deepagents."""
CONFIG = PLAIN if find_spec("deepagents") is None else DEEP


def graphs_of(config):
    return set(json.loads((FOLDER / config).read_text())["graphs"])


GRAPHS = graphs_of(CONFIG)


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    """A client of `langgraph dev`, started in a copy of graphs/ since it leaves files where it runs."""
    folder = tmp_path_factory.mktemp("served") / "graphs"
    shutil.copytree(repository / "graphs", folder, ignore=shutil.ignore_patterns(".langgraph_api", "__pycache__"))
    with langgraph_dev(folder, repository, CONFIG) as client:
        yield client


def say(server, text, graph="crafting", **request):
    body = {"assistant_id": graph, "input": {"messages": [{"role": "user", "content": text}]}, **request}
    answer = server.post("/runs/wait", json=body)
    assert answer.is_success, answer.text
    assert "messages" in answer.json(), answer.text
    return answer.json()["messages"]


def resumed_after_a_stop(server, text, graph, **request):
    """The streamed (event, data) of a run that was stopped before its only node, and goes on."""
    thread = server.post("/threads", json={}).json()["thread_id"]
    body = {"assistant_id": graph, **request}
    stopped = {**body, "input": {"messages": [{"role": "user", "content": text}]}, "interrupt_before": ["play"]}
    assert server.post(f"/threads/{thread}/runs/wait", json=stopped).is_success
    state = server.get(f"/threads/{thread}/state").json()
    assert (state["next"], len(state["values"]["messages"])) == (["play"], 1)
    resumed = {**body, "input": None, "stream_mode": ["values", "custom"], "stream_subgraphs": True}
    answer = server.post(f"/threads/{thread}/runs/stream", json=resumed).text
    assert "event: error" not in answer, answer[-1500:]
    assert server.get(f"/threads/{thread}/state").json()["next"] == []
    events = re.findall(r"event: (\S+)\ndata: ?(.+)\n", answer.replace("\r", ""))
    assert "error" not in dict(events), answer
    return [(event, json.loads(data)) for event, data in events]


def answer_of(events):
    return [data for event, data in events if event == "values"][-1]["messages"][-1]["content"]


@pytest.mark.thorough
def test_a_run_and_one_with_another_critic(server):
    # Nine steps at least: nobody is through at step 4, where the critic is asked.
    task = generate_task(1, "play", optimal_steps=(4, 9))
    other = {"context": {"critic": "uniform"}}
    for text, request, critic in [("task 1", {}, "embedded:crafting"), ("1", other, "uniform")]:
        messages = say(server, text, **request)
        assert [message["type"] for message in messages[:4]] == ["human", "human", "ai", "human"]
        assert messages[1]["content"] == task.instruction
        assert "Action:" in messages[2]["content"]
        assert f"particles crafted it; {critic} computed" in messages[-1]["content"]
        computed = int(messages[-1]["content"].split(" computed ")[1].split()[0])
        assert (computed > 0) == (critic == "embedded:crafting")


@pytest.mark.thorough  # starts the server; quick: test_every_graph_is_served
def test_a_whole_instruction_may_be_pasted(server):
    task = generate_task(2, "pasted", optimal_steps=(2, 4))
    messages = say(server, f"\n{task.instruction}\n")
    assert messages[1]["content"] == task.instruction
    assert "particles crafted it" in messages[-1]["content"]


FORBIDDEN = {"critic": "os:getcwd"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "request_"),
    [("hello", {}), ("task 7", {"context": FORBIDDEN}), ("task 7", {"config": {"configurable": FORBIDDEN}})],
)
def test_what_cannot_be_served_is_said(server, text, request_):
    messages = say(server, text, **request_)
    assert len(messages) == 2
    assert messages[-1]["content"].startswith("Send `task 7`")


@pytest.mark.thorough
def test_the_schemas_offer_the_critics(server):
    assistants = server.post("/assistants/search", json={"limit": 20}).json()
    assert {assistant["graph_id"] for assistant in assistants} == GRAPHS
    for assistant in assistants:
        schemas = server.get(f"/assistants/{assistant['assistant_id']}/schemas").json()
        assert "uniform" in str(schemas["context_schema"])
        assert "messages" in schemas["input_schema"]["properties"]


@pytest.mark.thorough
@pytest.mark.parametrize("graph", ["lac", "pnlc"])
def test_a_single_agent_plays_a_task(server, graph):
    task = generate_task(2, "play", optimal_steps=(4, 9))
    messages = say(server, "task 2", graph)
    assert messages[1]["content"] == task.instruction
    assert {message["type"] for message in messages[2::2]} == {"ai"}
    assert {message["type"] for message in messages[3::2]} == {"human"}
    assert all(graph in message["response_metadata"] for message in messages[2::2])


def test_every_graph_is_served():
    assert graphs_of(DEEP) == {path.stem for path in FOLDER.glob("*.py")}
    assert graphs_of(PLAIN) == graphs_of(DEEP) - {"deep_agent"}


needs_deepagents = pytest.mark.skipif(CONFIG == PLAIN, reason="needs deepagents")
POPULATIONS = [
    ("react_agent", "few-failures"),
    ("lac_in_amc", "embedded:crafting"),
    pytest.param("deep_agent", "few-failures", marks=needs_deepagents),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("graph", "critic"), POPULATIONS)
def test_a_population_plays_a_task(server, graph, critic):
    messages = say(server, "task 2", graph)
    assert f"particles crafted it; {critic} computed" in messages[-1]["content"]
    calls = [message for message in messages if message.get("tool_calls")]
    assert bool(calls) == (graph != "lac_in_amc")
    assert all(call["tool_calls"][0]["name"] == "act" for call in calls)


@pytest.mark.thorough
def test_the_posterior_of_psrl_grows_across_threads(server):
    beliefs = [say(server, "3", "psrl")[-1]["content"], answer_of(resumed_after_a_stop(server, "3", "psrl"))]
    pulls = [sum(map(int, re.findall(r"[0-9]+", belief))) - 10 for belief in beliefs]
    assert pulls == [3, 6]


@pytest.mark.thorough
def test_a_stream_and_the_next_turn_of_a_thread(server):
    thread = server.post("/threads", json={}).json()["thread_id"]
    body = {"assistant_id": "lac", "input": {"messages": [{"role": "user", "content": "task 2"}]},
            "stream_mode": ["messages-tuple", "custom"], "stream_subgraphs": True}  # fmt: skip
    text = server.post(f"/threads/{thread}/runs/stream", json=body).text
    assert "event: error" not in text
    assert '"type":"lac.decision"' in text.replace(" ", "")
    first = len(server.get(f"/threads/{thread}/state").json()["values"]["messages"])
    answer = server.post(f"/threads/{thread}/runs/wait", json={"assistant_id": "lac", "input": body["input"]}).json()
    assert answer["messages"][first]["content"] == "task 2", "the thread goes on where it was"


@pytest.mark.thorough
def test_every_graph_resumes_after_a_stop_as_a_stream_with_another_critic(server):
    critics = {graph: "verdict:embedded:crafting" if graph == "pnlc" else "uniform" for graph in GRAPHS - {"psrl"}}

    def streamed(graph):
        return resumed_after_a_stop(server, "task 2", graph, context={"critic": critics[graph]})

    # Side by side, because a run spends most of its time in the server's queue.
    with ThreadPoolExecutor() as side_by_side:
        runs = dict(zip(critics, side_by_side.map(streamed, critics), strict=True))
    for graph, events in runs.items():
        if graph in ("lac", "pnlc"):
            assert {data["critic"] for event, data in events if event.startswith("custom")} == {critics[graph]}
        else:
            assert f"particles crafted it; {critics[graph]} computed" in answer_of(events)
            progress = {data["type"] for event, data in events if event.startswith("custom")}
            assert {"amc.weigh", "amc.run"} <= progress, graph


@pytest.mark.thorough
@pytest.mark.parametrize("config", [PLAIN, DEEP])
def test_langgraph_writes_a_container_file_for_the_graphs(repository, tmp_path, config):
    target = tmp_path / "Dockerfile"
    command = [sys.executable, "-m", "langgraph_cli", "dockerfile", "--config", config, str(target)]
    subprocess.run(command, cwd=repository / "graphs", check=True, capture_output=True, env={**os.environ, **OFFLINE})
    text = target.read_text()
    assert all(f'"{graph}"' in text for graph in graphs_of(config))
    # langgraph does not quote requirements: the shell of the image would take < and > for redirections.
    assert not re.search(r"pip install [^\n]*[<>]", text)
