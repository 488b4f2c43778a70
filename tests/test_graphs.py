"""The deployable graphs, served by `langgraph dev` without a browser and without the internet."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time

import httpx
import pytest

from amc_agents.envs.crafting import generate_task

pytest.importorskip("langgraph_api", reason="needs langgraph-cli[inmem], of the [dev] extra")
OFFLINE = {
    "LANGSMITH_TRACING": "false",
    "LANGGRAPH_CLI_NO_ANALYTICS": "1",
    # Whoever tries to leave this machine fails at once.
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
}


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    """A client of `langgraph dev`, started in a copy of graphs/ since it leaves files where it runs."""
    folder = tmp_path_factory.mktemp("served") / "graphs"
    shutil.copytree(repository / "graphs", folder, ignore=shutil.ignore_patterns(".langgraph_api", "__pycache__"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")} | OFFLINE
    environment["PYTHONPATH"] = str(repository)
    command = [sys.executable, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload", "--port", str(port)]
    log = (folder / "server.log").open("w+")
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
        try:
            _wait_until_ok(client, process, log)
            yield client
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.close()


def _wait_until_ok(client, process, log):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if client.get("/ok").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    log.seek(0)
    raise AssertionError(f"langgraph dev did not start: {log.read()[-3000:]}")


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
        assert f"particles made it; {critic} computed" in messages[-1]["content"]
        computed = int(messages[-1]["content"].split(" computed ")[1].split()[0])
        assert (computed > 0) == (critic == "embedded:crafting")


def test_a_whole_instruction_may_be_pasted(server):
    task = generate_task(2, "pasted", optimal_steps=(2, 4))
    messages = say(server, f"\n{task.instruction}\n")
    assert messages[1]["content"] == task.instruction
    assert "particles made it" in messages[-1]["content"]


FORBIDDEN = {"critic": "os:getcwd"}


@pytest.mark.parametrize(
    ("text", "request_"),
    [("hello", {}), ("task 7", {"context": FORBIDDEN}), ("task 7", {"config": {"configurable": FORBIDDEN}})],
)
def test_what_cannot_be_served_is_said(server, text, request_):
    messages = say(server, text, **request_)
    assert len(messages) == 2
    assert messages[-1]["content"].startswith("Say `task 7`")


def test_the_schema_offers_the_critics(server):
    found = server.post("/assistants/search", json={}).json()
    schemas = server.get(f"/assistants/{found[0]['assistant_id']}/schemas").json()
    assert "uniform" in str(schemas["context_schema"])
