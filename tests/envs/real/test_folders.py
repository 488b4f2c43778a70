"""What is in folders of strangers, and changes that are written to them atomically."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import socket
import stat
from pathlib import Path

import pytest

from amc_agents.envs.real import Conflict, DirectoryFork, folders
from amc_agents.errors import ConfigurationError, ForkError, StorageError, WorldError

SYSTEM_CALLS = ("replace", "fsync", "unlink", "rmdir", "mkdir")


@pytest.fixture
def original(tmp_path):
    folder = tmp_path / "original"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.txt").write_text("a\n")
    (folder / "b.txt").write_text("b\n")
    (folder / "c.txt").write_text("c\n")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture
def make(original, tmp_path):
    (tmp_path / "workspaces").mkdir()
    return lambda **options: DirectoryFork(original, workspace=tmp_path / "workspaces", **options)


def tree(folder: Path) -> dict[str, object]:
    return {
        path.relative_to(folder).as_posix(): (
            os.readlink(path) if path.is_symlink() else None if path.is_dir() else path.read_text()
        )
        for path in folder.rglob("*")
    }


async def forked(world):
    """The folder of a copy of a copy."""
    twin = await world.fork(1)
    return twin.path


async def test_links_to_places_inside_lead_into_the_copy(original, make, tmp_path):
    (tmp_path / "alias").symlink_to(original)
    links = {
        "absolute": original / "b.txt",
        "by_an_alias": tmp_path / "alias" / "b.txt",
        "out_and_in": f"../{original.name}/b.txt",
        "relative": "src/../b.txt",
        "folder": original / "src",
        "nowhere": original / "missing",
    }
    for name, place in links.items():
        (original / name).symlink_to(place)
    world = make()
    path = await forked(world)
    for name in ("absolute", "by_an_alias", "out_and_in", "relative"):
        (path / name).write_text(name)
        assert ((path / "b.txt").read_text(), (world.path / "b.txt").read_text()) == (name, "b\n")
    (path / "folder" / "new").write_text("new")
    (path / "nowhere").write_text("new")
    assert sorted(tree(path).keys() - tree(world.path).keys()) == ["missing", "src/new"]
    assert os.readlink(path / "relative") == "src/../b.txt"
    assert {name: os.readlink(original / name) for name in links} == {name: str(place) for name, place in links.items()}
    assert not (original / "missing").exists()


async def test_applied_links_are_those_of_the_original(original, make):
    (original / "link").symlink_to(original / "b.txt")
    world = make()
    assert world.changes() == []
    (world.path / "added").symlink_to(world.path / "src")
    (world.path / "same").symlink_to("/usr")
    assert "+link to src\n" in world.diff()
    world.apply()
    assert os.readlink(original / "link") == str(original / "b.txt")
    assert (os.readlink(original / "added"), os.readlink(original / "same")) == ("src", "/usr")
    (original / "link").unlink()
    (original / "link").symlink_to("c.txt")
    (world.path / "link").unlink()
    with pytest.raises(Conflict, match="in link"):
        world.apply()


@pytest.fixture
def outside(tmp_path, original):
    """A folder and a file elsewhere, to which links of the original lead."""
    folder = tmp_path / "outside"
    (folder / "inner").mkdir(parents=True)
    (folder / "x.txt").write_text("x")
    (folder / "inner" / "up").symlink_to("../x.txt")
    (original / "data").symlink_to(folder)
    (original / "file").symlink_to("../outside/x.txt")
    return folder


async def test_what_lies_outside_is_copied(original, make, outside):
    (original / "gone").symlink_to(outside / "gone")
    world = make()
    path = await forked(world)
    for name in ("file", "data/x.txt", "data/inner/up"):
        (path / name).write_text("particle's")
    assert not (path / "gone").is_symlink(), "a particle would create it outside"
    assert (outside / "x.txt").read_text() == "x"
    assert (world.path / "data" / "inner" / "up").read_text() == "x"
    assert world.changes() == []
    (world.path / "file").write_text("particle's")
    (world.path / "data" / "x.txt").write_text("particle's")
    with pytest.raises(Conflict, match=r"in data/x\.txt, file\."):
        world.apply()
    assert (outside / "x.txt").read_text() == "x"


async def test_what_lies_outside_can_be_refused_or_shared(original, make, outside, tmp_path):
    with pytest.raises(ForkError, match=r"(data|file): the link leads out of the folder.*outside_links=\"copy\""):
        make(outside_links="refuse")
    assert list((tmp_path / "workspaces").iterdir()) == []
    path = await forked(make(outside_links="keep"))
    assert (path / "file").resolve() == outside / "x.txt"
    assert (path / "data" / "inner" / "up").read_text() == "x"
    with pytest.raises(ConfigurationError, match="one of copy, refuse, keep, got 'no'"):
        make(outside_links="no")


async def test_links_in_a_circle_are_refused(original, make, tmp_path):
    (original / "up").symlink_to(tmp_path)
    with pytest.raises(ForkError, match="original/up: the link leads in a circle"):
        make()


async def test_a_workspace_inside_the_folder_is_refused(original):
    with pytest.raises(ConfigurationError, match="contains the workspace"):
        DirectoryFork(original, workspace=original / "src")


async def test_pipes_sockets_and_devices_are_refused_by_name_or_left_out(original, make, tmp_path, monkeypatch):
    os.mkfifo(original / "pipe")
    with pytest.raises(ForkError, match=r"original/pipe: it is a pipe, a socket or a device\. .*ignore="):
        await asyncio.wait_for(asyncio.to_thread(make), 20)
    monkeypatch.chdir(original / "src")  # Paths of sockets are short.
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("server.sock")
        with pytest.raises(ForkError, match=r"src/server\.sock: it is a pipe"):
            make(ignore=["pipe"])
        world = make(ignore=["pipe", "*.sock"])
    assert sorted(tree(world.path)) == ["b.txt", "c.txt", "empty", "src", "src/a.txt"]
    os.mkfifo(world.path / "pipe")
    assert "pipe" not in tree(await forked(world))
    assert await world.snapshot()


@pytest.mark.skipif(not hasattr(os, "SEEK_HOLE"), reason="this system cannot tell where a file has holes")
async def test_sparse_files_stay_sparse(original, make):
    with (original / "sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(50 << 20)
        file.write(b"middle")
        file.truncate(100 << 20)
    path = await forked(make())
    assert (path / "sparse").stat().st_size == 100 << 20
    assert (path / "sparse").stat().st_blocks * 512 < 1 << 20
    with (path / "sparse").open("rb") as file:
        assert file.read(5) == b"begin"
        file.seek(50 << 20)
        assert file.read(7) == b"middle\0"


async def test_an_error_of_a_reflink_is_not_hidden(original, make, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("fcntl.ioctl", fail)
    with pytest.raises(ForkError, match=r"cannot copy .*: Input/output error"):
        make()


def rewrite(path: Path, text: str) -> None:
    """Write a file and give it its former times, as `tar` and `rsync` do."""
    state = path.stat()
    path.write_text(text)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


async def test_equal_sizes_and_times_hide_no_change(original, make):
    world = make()
    rewrite(world.path / "b.txt", "B\n")
    assert [change.path for change in world.changes()] == ["b.txt"]
    reference = await world.snapshot()
    restored = make()
    await restored.restore(reference)
    assert (restored.path / "b.txt").read_text() == "B\n"
    rewrite(original / "b.txt", "u\n")
    with pytest.raises(Conflict, match=r"in b\.txt"):
        world.apply()
    assert (original / "b.txt").read_text() == "u\n"


async def test_removing_a_copy_changes_no_permissions_elsewhere(original, make, outside, tmp_path, monkeypatch):
    world = make(outside_links="keep")
    (outside / "x.txt").chmod(0o640)
    (world.path / "src" / "shared").symlink_to(outside / "x.txt")
    (world.path / "src").chmod(0o500)
    unlink, failed = os.unlink, []

    def unlink_at_second_try(path, **where):
        if os.fspath(path).endswith("shared") and not failed:  # As for others than root.
            failed.append(path)
            raise PermissionError(errno.EACCES, "Permission denied")
        unlink(path, **where)

    monkeypatch.setattr(os, "unlink", unlink_at_second_try)
    await world.close()
    assert failed
    assert stat.S_IMODE((outside / "x.txt").stat().st_mode) == 0o640
    assert list((tmp_path / "workspaces").iterdir()) == []


async def test_what_both_changed_is_merged_line_by_line(original, make):
    lines = [f"{number}\n" for number in range(9)]
    (original / "b.txt").write_text("".join(lines))
    (original / "c.txt").write_text("".join(lines))
    world = make()
    for name in ("b.txt", "c.txt"):
        (world.path / name).write_text("".join(["particle\n", *lines[1:]]))
    (world.path / "b.txt").chmod(0o755)
    (original / "b.txt").write_text("".join([*lines[:-1], "user\n"]))
    (original / "c.txt").write_text("".join(["user\n", *lines[1:]]))
    before = tree(original)
    assert world.conflicts() == ["c.txt"]
    with pytest.raises(Conflict, match=r"in c\.txt\. Nothing was written"):
        world.apply()
    assert tree(original) == before
    (original / "c.txt").write_text("".join(lines))
    assert [change.path for change in world.apply()] == ["b.txt", "c.txt"]
    assert (original / "b.txt").read_text() == "".join(["particle\n", *lines[1:-1], "user\n"])
    assert stat.S_IMODE((original / "b.txt").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("unlink", "write"),
        ("write", "unlink"),
        ("write", "binary"),
        ("write", "folder"),
        ("below", "file"),
        ("below", "link"),
        ("place", "full folder"),
    ],
)
async def test_what_cannot_be_merged_is_a_conflict(original, make, mine, theirs, tmp_path):
    world = make()
    acts = {
        "unlink": lambda top: (top / "b.txt").unlink(),
        "write": lambda top: (top / "b.txt").write_text(f"{top}\n"),
        "binary": lambda top: (top / "b.txt").write_bytes(b"\0\1\2"),
        "folder": lambda top: ((top / "b.txt").unlink(), (top / "b.txt").mkdir()),
        "below": lambda top: ((top / "new").mkdir(), (top / "new" / "x").write_text("x")),
        "file": lambda top: (top / "new").write_text("x"),
        "link": lambda top: (top / "new").symlink_to(tmp_path),
        "place": lambda top: (top / "new").write_text("x"),
        "full folder": lambda top: ((top / "new").mkdir(), (top / "new" / "mine").write_text("x")),
    }
    acts[mine](world.path)
    acts[theirs](original)
    before = tree(original)
    with pytest.raises(Conflict):
        world.apply()
    assert tree(original) == before
    assert not (tmp_path / "x").exists()


async def test_a_folder_of_the_user_with_our_name_is_not_touched(original, make):
    for name in (".amc-apply", ".amc-apply-0123456789abcdef"):
        (original / name / "old").mkdir(parents=True)
        (original / name / "old" / "mine").write_text("mine")
    world = make()
    (world.path / "b.txt").write_text("B\n")
    world.apply()
    make()
    assert [(path.parts[-3], path.read_text()) for path in sorted(original.glob(".amc-apply*/old/mine"))] == [
        (".amc-apply", "mine"),
        (".amc-apply-0123456789abcdef", "mine"),
    ]


@pytest.fixture
def quick_disk(monkeypatch):
    """What is written need not be durable."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def edit(world: DirectoryFork) -> None:
    """Change, delete and add files, replace a file by a folder and a folder by a file."""
    (world.path / "src" / "a.txt").unlink()
    (world.path / "src").rmdir()
    (world.path / "src").write_text("a file")
    (world.path / "b.txt").unlink()
    (world.path / "b.txt").mkdir()
    (world.path / "b.txt" / "inner").write_text("inner")
    (world.path / "c.txt").write_text("C\n")
    (world.path / "new" / "deep").mkdir(parents=True)
    (world.path / "new" / "deep" / "d.txt").write_text("d\n")


def keep_changes(world, monkeypatch) -> None:
    """Compare the folders only once, so that the tests are quick."""
    changes = world.changes()
    monkeypatch.setattr(world, "changes", lambda: changes)


class Faults:
    """Counts system calls that change files, and acts at one of them."""

    def __init__(self, monkeypatch, at: int, act) -> None:
        self.n, self.at, self.act = 0, at, act
        for name in SYSTEM_CALLS:
            monkeypatch.setattr(os, name, self.counted(getattr(os, name)))

    def counted(self, call):
        def counted(*arguments, **named):
            self.n += 1
            if self.n == self.at:
                self.act(call, *arguments, **named)
            return call(*arguments, **named)

        return counted


class Killed(BaseException):
    """No handler can change files after it: see `killed_at`."""


def killed_at(number, call, *, after):
    """Call a function as in a process that is killed before or after its n-th system call; whether it was."""

    def die(system_call, *arguments, **named):
        faults.at += 1  # The next call of a handler has no effect either, and so on; or `after` the next that succeeds.
        if after:
            system_call(*arguments, **named)
        faults.act = die_again
        raise Killed

    def die_again(*_, **__):
        faults.at += 1
        raise Killed

    with pytest.MonkeyPatch.context() as patches:
        faults = Faults(patches, number, die)
        try:
            call()
        except Killed:
            return True
    return False


def really_killed_at(number, call, *, after):
    """As `killed_at`, in a process of its own."""
    process = os.fork()
    if process == 0:

        def die(system_call, *arguments, **named):
            faults.at += 1
            if after:
                system_call(*arguments, **named)
            os.kill(os.getpid(), signal.SIGKILL)

        with pytest.MonkeyPatch.context() as patches:
            faults = Faults(patches, number, die)
            call()
            os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def reset(original: Path, saved: Path) -> None:
    shutil.rmtree(original)
    shutil.copytree(saved, original)


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("kill", "stride"),
    [
        (killed_at, 7),
        pytest.param(killed_at, 1, marks=pytest.mark.thorough),
        pytest.param(really_killed_at, 1, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
async def test_after_a_kill_at_any_step_the_next_call_leaves_all_old_or_all_new(
    original, make, monkeypatch, tmp_path, kill, stride, after
):
    world = make()
    edit(world)
    old, new = tree(original), tree(world.path)
    shutil.copytree(original, tmp_path / "saved")
    keep_changes(world, monkeypatch)
    ends = []
    for number in range(1, 1000, stride):
        if not kill(number, world.apply, after=after):
            break
        with folders.locked(original):
            state = tree(original)
            assert state in (old, new), f"system call {number}"
        ends.append(state == new)
        world.apply()
        assert tree(original) == new
        reset(original, tmp_path / "saved")
    assert number > 40
    assert ends == sorted(ends), "all old until some step, all new from then on"
    assert {*ends} == {True, False}


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.thorough
async def test_a_completion_that_is_killed_too_is_completed(original, make, monkeypatch, tmp_path):
    world = make()
    edit(world)
    old, new = tree(original), tree(world.path)
    shutil.copytree(original, tmp_path / "saved")
    keep_changes(world, monkeypatch)

    def complete():
        with folders.locked(original):
            pass

    for number in range(1, 1000, 3):
        if not killed_at(number, world.apply, after=False):
            break
        shutil.copytree(original, tmp_path / "half", symlinks=True, dirs_exist_ok=False)
        for second in range(1, 1000, 2):
            if not killed_at(second, complete, after=True):
                break
            complete()
            assert tree(original) in (old, new), f"system calls {number}, {second}"
            reset(original, tmp_path / "half")
        shutil.rmtree(tmp_path / "half")
        reset(original, tmp_path / "saved")
    assert number > 40


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.thorough)])
async def test_an_error_at_any_step_leaves_all_old_and_a_success_all_new(original, make, monkeypatch, tmp_path, stride):
    world = make()
    edit(world)
    old, new = tree(original), tree(world.path)
    shutil.copytree(original, tmp_path / "saved")
    keep_changes(world, monkeypatch)

    def fail(*arguments, **named):
        raise OSError(errno.EIO, "Input/output error")

    for number in range(1, 1000, stride):
        with monkeypatch.context() as patches:
            faults = Faults(patches, number, fail)
            try:
                world.apply()
                failed = False
            except StorageError:
                failed = True
        if faults.n < number:
            break
        with folders.locked(original):
            assert tree(original) == (old if failed else new), f"system call {number}"
        reset(original, tmp_path / "saved")
    assert number > 40


@pytest.mark.usefixtures("quick_disk")
async def test_what_the_user_writes_in_the_middle_is_kept(original, make, monkeypatch):
    """An editor saves `c.txt` at any step of an apply that changes it.

    A single step remains, of microseconds: from the last look at its place to the rename.
    """
    lost = []
    world = make()
    (world.path / "c.txt").write_text("C\n")
    (world.path / "b.txt").write_text("B\n")
    keep_changes(world, monkeypatch)
    for number in range(1, 1000):
        with monkeypatch.context() as patches:
            faults = Faults(patches, number, lambda *_, **__: (original / "c.txt").write_text("saved\n"))
            try:
                world.apply()
                outcome = "applied"
            except WorldError as error:
                outcome = type(error).__name__
        if faults.n < number:
            break
        everywhere = {path.read_text() for path in original.rglob("*.txt")}
        if "saved\n" not in everywhere:
            lost.append((number, outcome))
        for staging in original.glob(".amc-apply-*"):
            shutil.rmtree(staging)
        (original / "c.txt").write_text("c\n")
        (original / "b.txt").write_text("b\n")
    assert number > 20
    assert len(lost) <= 1


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("moved", [True, False])
async def test_what_the_user_changed_after_a_kill_is_never_overwritten(original, make, monkeypatch, moved):
    world = make()
    (world.path / "b.txt").write_text("B\n")
    (world.path / "c.txt").write_text("C\n")
    keep_changes(world, monkeypatch)
    for number in range(1, 1000):
        assert killed_at(number, world.apply, after=True)
        if any(original.glob(".amc-apply-*/plan.json")) and (original / "c.txt").exists() is not moved:
            break
        with folders.locked(original):
            pass
        for name in "bc":
            (original / f"{name}.txt").write_text(f"{name}\n")
    (original / "c.txt").write_text("user\n")
    with pytest.raises(WorldError, match=r"cannot be completed, because c\.txt changed meanwhile: .*by|old/\. Move"):
        make()
    assert (original / "c.txt").read_text() == "user\n"


async def test_two_applies_take_turns(original, make, monkeypatch):
    monkeypatch.setattr(folders, "LOCK_LIMIT_S", 0.1)
    world = make()
    (world.path / "b.txt").write_text("B\n")
    with folders.locked(original, shared=True):
        make()
        with pytest.raises(WorldError, match=r"reading or changing .* for 0\.1 s: wait"):
            world.apply()
    world.apply()
    assert (original / "b.txt").read_text() == "B\n"
