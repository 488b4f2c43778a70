from __future__ import annotations

import pytest

pytest.importorskip("daytona")

from amc_agents_sandboxes.daytona import DaytonaWorld
from daytona import AsyncDaytona, DaytonaConfig

from amc_agents.errors import EnvironmentStateError, ForkError
from amc_agents.types import Forkable


def sandbox(name, url):
    return {
        "id": name, "organizationId": "o", "name": name, "user": "u", "env": {}, "labels": {}, "public": False,
        "networkBlockAll": False, "kvm": False, "target": "us", "cpu": 1, "gpu": 0, "memory": 1, "disk": 1,
        "state": "started", "toolboxProxyUrl": f"{url}/toolbox",
    }  # fmt: skip


@pytest.fixture
async def world(vendor):
    vendor.answers = {
        "GET /sandbox/one": (200, sandbox("one", vendor.url)),
        "GET /sandbox/two": (200, sandbox("two", vendor.url)),
        "POST /sandbox/one/fork": (200, sandbox("two", vendor.url)),
        "DELETE /sandbox/one": (200, sandbox("one", vendor.url)),
        "DELETE /sandbox/two": (200, sandbox("two", vendor.url)),
        "POST /toolbox/one/process/execute": (200, {"exitCode": 3, "result": "no such file"}),
    }
    config = DaytonaConfig(api_key="key", api_url=vendor.url, target="us", use_deprecated_polling=True)
    async with AsyncDaytona(config) as daytona:
        yield DaytonaWorld(await daytona.get("one"))


async def test_a_fork_is_one_fork_of_the_sdk(world, vendor):
    assert isinstance(world, Forkable)
    twin = await world.fork(1)
    assert (world.sandbox.id, twin.sandbox.id) == ("one", "two")
    forks = [request for request in vendor.requests if request[0] == "POST /sandbox/one/fork"]
    assert len(forks) == 1
    assert forks[0][3]["authorization"] == "Bearer key"


async def test_a_refused_fork_is_a_fork_error(world, vendor):
    vendor.answers["POST /sandbox/one/fork"] = (403, {"message": "forks are off"})
    with pytest.raises(ForkError, match=r"DaytonaWorld could not fork: .*forks are off"):
        await world.fork(1)


async def test_closing_deletes_the_sandbox_once(world, vendor):
    twin = await world.fork(1)
    for _ in range(2):
        await twin.close()
        await world.close()
    deletions = [request for request in vendor.seen() if request.startswith("DELETE")]
    assert deletions == ["DELETE /sandbox/two", "DELETE /sandbox/one"]
    with pytest.raises(EnvironmentStateError, match="closed"):
        await world.fork(1)


async def test_a_command_runs_in_the_sandbox(world, vendor):
    assert await world.run("cat x") == (3, "no such file")
    assert vendor.requests[-1][2]["command"] == "cat x"


def multipart(name, content):
    head = f'--part\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return head.encode() + content + b"\r\n--part--\r\n"


async def test_a_file_is_read(world, vendor):
    answer = 200, multipart("/a.txt", b"con\xfftent"), "multipart/form-data; boundary=part"
    vendor.answers["POST /toolbox/one/files/bulk-download"] = answer
    assert await world.read("/a.txt") == b"con\xfftent"
    request, _, body, headers = vendor.requests[-1]
    assert (request, body["paths"]) == ("POST /toolbox/one/files/bulk-download", ["/a.txt"])
    assert headers["authorization"] == "Bearer key"


async def test_a_file_is_written(world, vendor):
    vendor.answers["POST /toolbox/one/files/bulk-upload"] = (200, b"")
    await world.write("/a.txt", b"con\xfftent")
    request, _, body, headers = vendor.requests[-1]
    assert request == "POST /toolbox/one/files/bulk-upload"
    assert headers["content-type"].startswith("multipart/form-data")
    assert b"/a.txt" in body
    assert b"con\xfftent" in body
