"""The deployable graphs, served by `langgraph dev` without a browser and without the internet."""

from __future__ import annotations

import shutil

import pytest

from amc_agents.envs.crafting import generate_task
from tests.langgraph_server import langgraph_dev

pytest.importorskip("langgraph_api", reason="needs langgraph-cli[inmem], of the [dev] extra")


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    """A client of `langgraph dev`, started in a copy of graphs/ since it leaves files where it runs."""
    folder = tmp_path_factory.mktemp("served") / "graphs"
    shutil.copytree(repository / "graphs", folder, ignore=shutil.ignore_patterns(".langgraph_api", "__pycache__"))
    with langgraph_dev(folder, repository) as client:
        yield client


def say(server, text, **request):
    body = {"assistant_id": "crafting", "input": {"messages": [{"role": "user", "content": text}]}, **request}
    answer = server.post("/runs/wait", json=body)
    assert answer.is_success, answer.text
    assert "messages" in answer.json(), answer.text
    return answer.json()["messages"]


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


def test_a_whole_instruction_may_be_pasted(server):
    task = generate_task(2, "pasted", optimal_steps=(2, 4))
    messages = say(server, f"\n{task.instruction}\n")
    assert messages[1]["content"] == task.instruction
    assert "particles crafted it" in messages[-1]["content"]


FORBIDDEN = {"critic": "os:getcwd"}


@pytest.mark.parametrize(
    ("text", "request_"),
    [("hello", {}), ("task 7", {"context": FORBIDDEN}), ("task 7", {"config": {"configurable": FORBIDDEN}})],
)
def test_what_cannot_be_served_is_said(server, text, request_):
    messages = say(server, text, **request_)
    assert len(messages) == 2
    assert messages[-1]["content"].startswith("Send `task 7`")


def test_the_schema_offers_the_critics(server):
    found = server.post("/assistants/search", json={}).json()
    schemas = server.get(f"/assistants/{found[0]['assistant_id']}/schemas").json()
    assert "uniform" in str(schemas["context_schema"])
