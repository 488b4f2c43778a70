"""microsandbox has no HTTP interface and needs KVM: a fake has the methods, which must exist in the SDK's own class."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest

pytest.importorskip("microsandbox")

import microsandbox
from amc_agents_sandboxes.microsandbox import MicrosandboxWorld

from amc_agents.errors import EnvironmentStateError, ForkError
from amc_agents.types import Forkable


class Fake:
    """A sandbox by the published signatures."""

    def __init__(self, name, calls):
        self._name, self.calls = name, calls
        self.fs = SimpleNamespace(read=self._read, write=self._write)

    async def name(self):
        return self._name

    async def fork(self, name):
        self.calls.append(("fork", self._name))
        if self._name == "full":
            raise microsandbox.InvalidConfigError("no memory is left")
        return Fake(name, self.calls)

    async def kill(self):
        self.calls.append(("kill", self._name))

    @staticmethod
    async def remove(name):
        removed.append(name)

    async def shell(self, script):
        return SimpleNamespace(exit_code=0, stdout_text=script, stderr_text="!")

    async def _read(self, path):
        return f"content of {path}".encode()

    async def _write(self, path, data):
        self.calls.append(("write", path, data))


removed: list[str] = []


def test_the_sdk_has_the_methods_of_the_fake():
    for name in ("name", "fork", "kill", "remove", "shell", "fs"):
        assert hasattr(microsandbox.Sandbox, name)
    for name in ("read", "write"):
        assert hasattr(microsandbox.SandboxFsOps, name)
    signature = inspect.signature(microsandbox.Sandbox.fork)
    assert "name" in signature.parameters


async def test_forks_have_names_of_their_own_and_are_removed():
    removed.clear()
    calls = []
    world = MicrosandboxWorld(Fake("one", calls))
    assert isinstance(world, Forkable)
    twins = [await world.fork(1), await world.fork(2)]
    names = [await twin.sandbox.name() for twin in twins]
    assert len({"one", *names}) == 3
    for each in (*twins, world, world):
        await each.close()
    assert removed == [*names, "one"]
    assert calls[-1] == ("kill", "one")
    with pytest.raises(EnvironmentStateError, match="closed"):
        await world.fork(1)


async def test_a_refused_fork_is_a_fork_error():
    with pytest.raises(ForkError, match="no memory is left"):
        await MicrosandboxWorld(Fake("full", [])).fork(1)


async def test_commands_and_files():
    calls = []
    world = MicrosandboxWorld(Fake("one", calls))
    assert await world.run("pwd") == (0, "pwd!")
    assert await world.read("/a") == b"content of /a"
    await world.write("/a", b"new")
    assert calls == [("write", "/a", b"new")]
