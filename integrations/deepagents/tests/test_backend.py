from __future__ import annotations

import inspect

import pytest

pytest.importorskip("deepagents")

from amc_agents_deepagents import ForkingBackend, ForkingShellBackend
from deepagents.backends import BackendProtocol
from deepagents.backends.protocol import SandboxBackendProtocol

from amc_agents import current_environment, use_environment
from amc_agents.envs import DirectoryFork, WorldBundle
from amc_agents.errors import EnvironmentStateError

BACKENDS = [ForkingBackend, ForkingShellBackend]


@pytest.fixture
def original(tmp_path):
    folder = tmp_path / "original"
    (folder / "src").mkdir(parents=True)
    (folder / "a.txt").write_text("alpha\n")
    (folder / "src" / "b.py").write_text("beta = 1\n")
    (tmp_path / "secret.txt").write_text("secret\n")
    (folder / "way-out").symlink_to(tmp_path)
    return folder


@pytest.fixture
def world(original, tmp_path):
    (tmp_path / "workspaces").mkdir()
    return DirectoryFork(original, workspace=tmp_path / "workspaces", outside_links="keep")


def in_world(world, call, *arguments, **options):
    with use_environment(world):
        return call(*arguments, **options)


@pytest.mark.parametrize("kind", BACKENDS)
def test_every_call_acts_in_the_folder_of_the_world(kind, world, original):
    backend = kind()
    with use_environment(world):
        assert [entry["path"] for entry in backend.ls("/").entries] == ["/a.txt", "/src/"]
        assert backend.read("/a.txt").file_data["content"] == "alpha\n"
        assert backend.write("/new/c.txt", "gamma\n").error is None
        assert backend.edit("/src/b.py", "1", "2").occurrences == 1
        assert {match["path"] for match in backend.grep("a").matches} == {"/a.txt", "/new/c.txt", "/src/b.py"}
        assert [match["path"] for match in backend.glob("*.py").matches] == ["/src/b.py"]
        assert backend.delete("/a.txt").error is None
        assert backend.upload_files([("/d.bin", b"\xff")])[0].error is None
        assert backend.download_files(["/d.bin"])[0].content == b"\xff"
    assert [(change.path, change.kind) for change in world.changes()] == [
        ("a.txt", "deleted"),
        ("d.bin", "added"),
        ("new/c.txt", "added"),
        ("src/b.py", "modified"),
    ]
    assert sorted(path.name for path in original.iterdir()) == ["a.txt", "src", "way-out"]
    assert (original / "src" / "b.py").read_text() == "beta = 1\n"


@pytest.mark.parametrize("kind", BACKENDS)
async def test_the_async_calls_reach_the_world_from_their_threads(kind, world):
    backend = kind()
    with use_environment(world):
        assert (await backend.awrite("/c.txt", "gamma\n")).error is None
        assert (await backend.aread("/c.txt")).file_data["content"] == "gamma\n"
        assert (await backend.aedit("/c.txt", "gamma", "delta")).occurrences == 1
        assert [match["path"] for match in (await backend.agrep("delta")).matches] == ["/c.txt"]
        assert [match["path"] for match in (await backend.aglob("c.*")).matches] == ["/c.txt"]
        assert "/c.txt" in [entry["path"] for entry in (await backend.als("/")).entries]
        assert (await backend.adelete("/c.txt")).error is None
        assert (await backend.aupload_files([("/d.bin", b"x")]))[0].error is None
        assert (await backend.adownload_files(["/d.bin"]))[0].content == b"x"
    assert [(change.path, change.kind) for change in world.changes()] == [("d.bin", "added")]


async def test_each_world_sees_its_own_files_through_the_same_backend(world):
    backend = ForkingBackend()
    in_world(world, backend.write, "/a.txt", "parent\n")
    twin = await world.fork(1)
    in_world(twin, backend.write, "/a.txt", "twin\n")
    assert in_world(world, backend.read, "/a.txt").file_data["content"] == "parent\n"
    assert in_world(twin, backend.read, "/a.txt").file_data["content"] == "twin\n"


@pytest.mark.parametrize("path", ["/../../secret.txt", "../../secret.txt", "/way-out/secret.txt"])
@pytest.mark.parametrize("kind", BACKENDS)
def test_paths_out_of_the_folder_are_refused(kind, path, world, tmp_path):
    backend = kind()
    with use_environment(world):
        assert backend.upload_files([(path, b"x")])[0].error == "invalid_path"
        assert backend.download_files([path])[0].error == "invalid_path"
        for call in (backend.read, backend.delete, lambda path: backend.write(path, "x")):
            assert_refused(call, path)
    assert (tmp_path / "secret.txt").read_text() == "secret\n"


def assert_refused(call, path):
    try:
        assert call(path).error
    except ValueError as error:  # By deepagents, depending on its version and the call.
        assert "not allowed" in str(error) or "outside root" in str(error)  # noqa: PT017


def test_an_absolute_path_of_this_machine_means_a_path_in_the_folder(world, tmp_path):
    outside = tmp_path / "written.txt"
    assert in_world(world, ForkingBackend().write, str(outside), "x").error is None
    assert not outside.exists()
    assert (world.path / outside.relative_to("/")).read_text() == "x"


def test_commands_run_in_the_folder_of_the_world(world):
    done = in_world(world, ForkingShellBackend().execute, "pwd; echo more >> a.txt; exit 3")
    assert done.output.splitlines()[0] == str(world.path.resolve())
    assert done.exit_code == 3
    assert (world.path / "a.txt").read_text() == "alpha\nmore\n"


def test_commands_inherit_no_environment_unless_told(world, monkeypatch):
    monkeypatch.setenv("API_KEY", "key")
    command = "echo ${API_KEY-unset} ${MODE-unset}"
    assert in_world(world, ForkingShellBackend().execute, command).output == "unset unset\n"
    assert in_world(world, ForkingShellBackend(env={"MODE": "x"}).execute, command).output == "unset x\n"
    assert in_world(world, ForkingShellBackend(inherit_env=True).execute, command).output == "key unset\n"


def test_a_command_stops_at_its_time_limit_and_its_output_at_its_size(world):
    backend = ForkingShellBackend(timeout=1, max_output_bytes=100)
    assert in_world(world, backend.execute, "sleep 5").exit_code == 124
    assert in_world(world, backend.execute, "yes | head -500").truncated


def test_only_the_shell_backend_has_a_shell():
    assert isinstance(ForkingShellBackend(), SandboxBackendProtocol)
    assert not isinstance(ForkingBackend(), SandboxBackendProtocol)


async def test_without_an_open_world_the_error_says_what_to_do(world):
    with pytest.raises(EnvironmentStateError, match=r"amc\(\.\.\., environment="):
        ForkingBackend().write("/a.txt", "x")
    await world.close()
    with pytest.raises(EnvironmentStateError, match="closed"):
        in_world(world, ForkingBackend().write, "/a.txt", "x")


@pytest.mark.parametrize("kind", BACKENDS)
def test_the_folder_may_be_in_a_bundle(kind, world):
    backend = kind(lambda: current_environment(WorldBundle).files)
    assert in_world(WorldBundle(files=world), backend.read, "/a.txt").file_data["content"] == "alpha\n"


@pytest.mark.parametrize("kind", BACKENDS)
def test_no_call_of_the_protocol_is_missing(kind):
    calls = inspect.getmembers(BackendProtocol, inspect.isfunction)
    assert {name for name, call in calls if "raise NotImplementedError" in inspect.getsource(call)} >= {"ls", "delete"}
    missing = [
        name for name, call in calls if getattr(kind, name) is call and "NotImplementedError" in inspect.getsource(call)
    ]
    assert missing == []
