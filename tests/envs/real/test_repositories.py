"""Real git in copies of real repositories: nothing that a particle does there reaches the user's repository."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from amc_agents.envs.real import DirectoryFork
from amc_agents.errors import ConfigurationError

WHO = (
    "-c",
    "user.name=a",
    "-c",
    "user.email=a@b.c",
    "-c",
    "protocol.file.allow=always",
    "-c",
    "init.defaultBranch=main",
)


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *WHO, *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    ).stdout


def make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("1\n")
    (folder / ".gitignore").write_text("build/\n*.log\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "start")
    return folder


def content(folder: Path) -> dict[str, bytes | str]:
    """Everything below a folder, repositories included."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() or path.is_symlink()
    }


def worktree(top: Path) -> Path:
    git(make(top / "repository"), "worktree", "add", "-q", str(top / "worktree"), "-b", "work")
    return top / "worktree"


def worktree_with_own_config(top: Path) -> Path:
    folder = worktree(top)
    git(folder, "config", "extensions.worktreeConfig", "true")
    git(folder, "config", "--worktree", "core.worktree", str(folder))
    return folder


def submodule(top: Path) -> Path:
    git(make(top / "outer"), "submodule", "--quiet", "add", str(make(top / "inner")), "part")
    return top / "outer" / "part"


def with_submodule(top: Path) -> Path:
    return submodule(top).parent


def borrowing(top: Path) -> Path:
    git(top, "clone", "-q", "--shared", str(make(top / "lender")), str(top / "borrower"))
    (top / "borrower" / "b.txt").write_text("b")
    return top / "borrower"


def hooked(top: Path) -> Path:
    folder, hooks = make(top / "repository"), top / "hooks"
    hooks.mkdir()
    for hook in (hooks / "post-commit", folder / ".git/hooks/post-commit", folder / ".git/hooks/post-checkout"):
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\necho ran >> {top}/ran\n")
        hook.chmod(0o755)
    git(folder, "config", "core.hooksPath", str(hooks))
    return folder


def distant_worktree(top: Path) -> Path:
    """The repository says by an absolute path where its files are."""
    git(make(top / "repository"), "config", "core.worktree", str(top / "repository"))
    return top / "repository"


def linked(top: Path) -> Path:
    """`.git` is a link to a folder elsewhere."""
    folder = make(top / "repository")
    shutil.move(folder / ".git", top / "elsewhere")
    (folder / ".git").symlink_to(top / "elsewhere")
    return folder


def bare_and_worktrees(top: Path) -> Path:
    """A popular layout: a bare repository beside its worktrees, which all lie in the folder."""
    top.mkdir(exist_ok=True)
    git(top, "clone", "-q", "--bare", str(make(top / "origin")), str(top / "project" / ".bare"))
    (top / "project" / ".git").write_text("gitdir: ./.bare\n")
    git(top / "project", "worktree", "add", "-q", str(top / "project" / "main"), "main")
    return top / "project" / "main"


KINDS = [worktree, borrowing]
LATER = [
    worktree_with_own_config, submodule, with_submodule, hooked, distant_worktree, linked, bare_and_worktrees,
]  # fmt: skip


def work(folder: Path) -> None:
    """Commit, branch, stash, and add and remove worktrees."""
    (folder / "a.txt").write_text("a particle's\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "particle")
    git(folder, "branch", "-f", "of-a-particle")
    (folder / "a.txt").write_text("stashed\n")
    git(folder, "stash")
    git(folder, "worktree", "prune")
    for line in git(folder, "worktree", "list", "--porcelain").splitlines():
        if line.startswith("worktree ") and Path(line[9:]) != folder.resolve():
            subprocess.run(["git", "worktree", "remove", "--force", line[9:]], cwd=folder, check=False)
    git(folder, "worktree", "add", "-q", "inside", "-b", "second")
    (folder / "inside" / "a.txt").write_text("second\n")
    git(folder / "inside", "commit", "-qam", "second")
    git(folder, "gc", "-q")


@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.thorough) for kind in LATER)])
async def test_what_a_particle_does_with_git_stays_in_its_copy(tmp_path, kind):
    top = tmp_path / "user"
    top.mkdir()
    folder = kind(top)
    refs, before = git(folder, "for-each-ref"), content(top)
    world = DirectoryFork(folder, workspace=tmp_path)
    log = git(world.path, "log", "--format=%H %s")
    assert log == git(folder, "log", "--format=%H %s")
    assert git(world.path, "status", "--porcelain") == git(folder, "status", "--porcelain")
    assert content(top) == before, "only git status was run there"
    work(world.path)
    twin = await world.fork(1)
    state = git(world.path, "for-each-ref"), git(world.path / "inside", "status")
    (twin.path / "inside" / "a.txt").write_text("twin\n")
    git(twin.path / "inside", "commit", "-qam", "twin")
    assert (git(world.path, "for-each-ref"), git(world.path / "inside", "status")) == state
    reference = await twin.snapshot()
    await twin.restore(reference)
    git(twin.path / "inside", "commit", "-q", "--allow-empty", "-m", "restored")
    assert content(top) == before
    assert git(folder, "for-each-ref") == refs
    shutil.rmtree(top)
    assert "particle" in git(twin.path, "log", "--format=%s"), "it needs nothing of the original"
    git(twin.path, "fsck")
    for each in (world, twin):
        await each.close()


@pytest.mark.thorough
async def test_worktrees_inside_the_folder_belong_to_the_repository_of_the_copy(tmp_path):
    project = bare_and_worktrees(tmp_path / "user").parent
    before = content(tmp_path / "user")
    world = DirectoryFork(project, workspace=tmp_path)
    twin = await world.fork(1)
    for number, each in enumerate((world, twin)):
        (each.path / "main" / "a.txt").write_text(f"particle {number}\n")
        git(each.path / "main", "commit", "-qam", f"particle {number}")
        git(each.path, "worktree", "prune")
        assert git(each.path, "log", "--format=%s", "main") == f"particle {number}\nstart\n"
    assert changed(twin) == ["main/a.txt"]
    assert content(tmp_path / "user") == before
    for each in (world, twin):
        await each.close()


async def test_a_copy_without_repository_finds_none_above_it(tmp_path):
    folder = make(tmp_path / "repository")
    (folder / "part").mkdir()
    (folder / "part" / "b.txt").write_text("b\n")
    (folder / "workspaces").mkdir()
    world = DirectoryFork(folder / "part", workspace=folder / "workspaces")
    before = git(folder, "for-each-ref")
    done = subprocess.run(["git", "add", "-A"], cwd=world.path, capture_output=True, text=True, check=False)
    assert "not a git repository" in done.stderr
    assert git(folder, "for-each-ref") == before
    await world.close()


@pytest.mark.parametrize("name", ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"])
def test_variables_that_lead_to_one_repository_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, str(make(tmp_path / "repository") / ".git"))
    with pytest.raises(ConfigurationError, match=f"refuses the environment variable {name}=.*Unset it"):
        DirectoryFork(tmp_path / "repository", workspace=tmp_path)


def test_settings_that_lead_elsewhere_are_refused(tmp_path):
    folder = make(tmp_path / "repository")
    with (folder / ".git" / "config").open("a") as config:
        config.write(f"[user][core]worktree={folder}\n")  # Two sections in a line are legal, but never seen.
    (tmp_path / "workspaces").mkdir()
    with pytest.raises(ConfigurationError, match=f"would write to {folder}, outside of the copy"):
        DirectoryFork(folder, workspace=tmp_path / "workspaces")
    assert list((tmp_path / "workspaces").iterdir()) == []


async def test_hooks_do_not_run_in_copies(tmp_path):
    world = DirectoryFork(hooked(tmp_path), workspace=tmp_path)
    (world.path / "a.txt").write_text("2\n")
    git(world.path, "commit", "-qam", "2")
    assert not (tmp_path / "ran").exists()
    await world.close()
    (tmp_path / "repository" / "a.txt").write_text("2\n")
    git(tmp_path / "repository", "commit", "-qam", "2")
    assert (tmp_path / "ran").exists(), "the user's own still do"


def changed(world: DirectoryFork) -> list[str]:
    return [change.path for change in world.changes()]


async def test_neither_git_nor_ignored_files_are_changes(tmp_path):
    folder = make(tmp_path / "repository")
    (folder / "kept.log").write_text("tracked\n")
    git(folder, "add", "-f", "kept.log")
    git(folder, "commit", "-qm", "log")
    make(folder / "nested")
    (folder / "run.log").write_text("before\n")
    world = DirectoryFork(folder, workspace=tmp_path)
    for name in ("build/x", "run.log", "new.log", "nested/build/x", "kept.log", "nested/a.txt", "new.txt", "dist/x"):
        (world.path / name).parent.mkdir(parents=True, exist_ok=True)
        (world.path / name).write_text("particle\n")
    with (world.path / ".gitignore").open("a") as rules:
        rules.write("dist/\n")
    git(world.path, "add", "new.txt")
    git(world.path, "commit", "-qm", "particle")
    (world.path / "link").symlink_to("nested")
    names = [".gitignore", "kept.log", "link", "nested/a.txt", "new.txt"]
    assert changed(world) == names
    assert ".git/" not in world.diff()
    head = git(folder, "rev-parse", "HEAD")
    assert [change.path for change in world.apply()] == names
    assert git(folder, "rev-parse", "HEAD") == head
    assert not (folder / "build").exists()
    assert (folder / "run.log").read_text() == "before\n"
    await world.close()


@pytest.mark.parametrize("inside", [True, False], ids=["part of a repository", "without a repository"])
async def test_ignored_files_of_a_folder_without_a_repository_of_its_own(tmp_path, inside):
    folder = tmp_path / "folder"
    if inside:
        folder = make(folder) / "part"
        folder.mkdir()
    else:
        folder.mkdir()
        (folder / ".gitignore").write_text("*.log\n")
    world = DirectoryFork(folder, workspace=tmp_path)
    (world.path / "x.log").write_text("x")
    (world.path / "x.txt").write_text("x")
    assert changed(world) == ["x.txt"]
    await world.close()


async def test_without_git_nothing_is_ignored_or_merged(tmp_path, monkeypatch):
    world = DirectoryFork(make(tmp_path / "repository"), workspace=tmp_path)
    (world.path / "x.log").write_text("x")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await asyncio.to_thread(changed, world) == ["x.log"]
    (world.path / "a.txt").write_text("particle\n")
    (world.original / "a.txt").write_text("user\n")
    assert world.conflicts() == ["a.txt"]
    await world.close()
