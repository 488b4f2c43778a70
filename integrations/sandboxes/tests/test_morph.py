from __future__ import annotations

import subprocess

import pytest

pytest.importorskip("morphcloud")

from amc_agents_sandboxes.morph import MorphWorld
from morphcloud.api import MorphCloudClient

from amc_agents.errors import EnvironmentStateError, ForkError
from amc_agents.types import Forkable

SPEC = {"vcpus": 1, "memory": 1, "disk_size": 1}


def instance(name):
    return {
        "id": name, "created": 1, "status": "ready", "spec": SPEC, "refs": {"snapshot_id": "s", "image_id": "i"},
        "networking": {},
    }  # fmt: skip


SNAPSHOT = {"id": "snap", "created": 1, "status": "ready", "spec": SPEC, "refs": {"image_id": "i"}}


@pytest.fixture
async def world(vendor):
    vendor.answers = {
        "GET /instance/one": (200, instance("one")),
        "GET /instance/two": (200, instance("two")),
        "POST /instance/one/branch": (200, {"snapshot": SNAPSHOT, "instances": [instance("two")]}),
        "DELETE /snapshot/snap": (200, {}),
        "DELETE /instance/one": (200, {}),
        "DELETE /instance/two": (200, {}),
        "POST /instance/one/exec": (200, {"exit_code": 1, "stdout": "a", "stderr": "b"}),
    }
    client = MorphCloudClient(api_key="key", base_url=vendor.url)
    return MorphWorld(await client.instances.aget("one"))


async def test_a_fork_is_one_branch_whose_snapshot_is_deleted(world, vendor):
    assert isinstance(world, Forkable)
    twin = await world.fork(1)
    assert (world.sandbox.id, twin.sandbox.id) == ("one", "two")
    branch = next(request for request in vendor.requests if request[0] == "POST /instance/one/branch")
    assert branch[1] == "count=1"
    assert vendor.seen()[-1] == "DELETE /snapshot/snap"


async def test_if_the_snapshot_cannot_be_deleted_no_instance_is_left(world, vendor):
    vendor.answers["DELETE /snapshot/snap"] = (500, {"detail": "broken"})
    with pytest.raises(ForkError, match="MorphWorld could not fork"):
        await world.fork(1)
    assert vendor.seen()[-1] == "DELETE /instance/two"


async def test_a_refused_fork_is_a_fork_error(world, vendor):
    vendor.answers["POST /instance/one/branch"] = (402, {"detail": "no credit"})
    with pytest.raises(ForkError, match="MorphWorld could not fork"):
        await world.fork(1)


async def test_closing_stops_the_instance_once(world, vendor):
    for _ in range(2):
        await world.close()
    assert vendor.seen().count("DELETE /instance/one") == 1
    with pytest.raises(EnvironmentStateError, match="closed"):
        await world.fork(1)


async def test_a_command_runs_in_the_instance(world, vendor):
    assert await world.run("cat x") == (1, "ab")
    assert vendor.requests[-1][2]["command"] == ["cat x"]


def in_a_local_shell(body):
    """Run the command of a request on this machine, as the instance would."""
    done = subprocess.run(["sh", "-c", body["command"][0]], capture_output=True, text=True, timeout=10, check=False)
    return 200, {"exit_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


@pytest.mark.parametrize("content", [b"", b"text\n", bytes(range(256)) * 600])
async def test_files_are_written_and_read_by_commands(world, vendor, tmp_path, content):
    vendor.answers["POST /instance/one/exec"] = in_a_local_shell
    path = f"{tmp_path}/new folder/it's.bin"
    await world.write(path, b"old")
    await world.write(path, content)
    assert await world.read(path) == content
    assert [each.name for each in (tmp_path / "new folder").iterdir()] == ["it's.bin"]
    assert vendor.requests[-1][2]["command"] == [f"""base64 < '{tmp_path}/new folder/it'"'"'s.bin'"""]
    assert max(len(request[2]["command"][0]) for request in vendor.requests if request[2]) < 128 * 1024


async def test_a_file_that_does_not_exist_is_an_os_error(world, vendor, tmp_path):
    vendor.answers["POST /instance/one/exec"] = in_a_local_shell
    with pytest.raises(OSError, match="exit code"):
        await world.read(f"{tmp_path}/missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="exit code"):
        await world.write(f"{tmp_path}/file/inside", b"")
