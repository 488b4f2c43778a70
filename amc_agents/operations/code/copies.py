"""Copies of a repository: files as they lie in the working tree, and a `.git` of each copy's own.

The repository is only read. A copy's `.git` borrows the objects of the original and shares nothing else: refs and the
index are copied, remotes and hooks are left out. The `.git` of a copy belongs to the agent, so git never runs there on
our behalf: an agent's configuration could name programs. What an agent changed is found by comparing bytes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from amc_agents.envs.real.changes import FileChange
from amc_agents.envs.real.copying import GIT, is_inside
from amc_agents.envs.real.folders import copy_file, files_in, locked, same
from amc_agents.envs.real.repositories import copy_apart
from amc_agents.errors import ConfigurationError, WorldError
from amc_agents.files import storage_errors
from amc_agents.quoting import excerpt, listed, quoted

JUNK = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".DS_Store"})
"""Names that are no work of an agent, for repositories that do not ignore them."""
_COPIED_SETTINGS = (
    r"^(core\.(autocrlf|eol|filemode|ignorecase|symlinks|sparsecheckout|sparsecheckoutcone)|user\..*|filter\..*)$"
)
_SETTINGS = """[core]
\trepositoryformatversion = {version}
\tbare = false
\thooksPath = {devnull}
\tfsmonitor = false
\tcheckStat = minimal
\ttrustctime = false
"""
"""Only size and time of a file are compared with the copied index, since inodes differ in a copy."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository, or a folder without git."""

    top: Path
    """The working tree, or the folder."""
    git: bool
    """Whether it is a git repository."""
    head: str | None
    """The commit of HEAD; None without commits."""
    inside: Path
    """The folder in which agents start, relative to `top`."""

    @classmethod
    def around(cls, folder: Path) -> Repository:
        """Find the repository around a folder.

        Raises:
            ConfigurationError: there is no such folder, or it is a bare repository or lies inside `.git`.
        """
        place = folder.resolve()
        if not place.is_dir():
            raise ConfigurationError(f"{folder} is not a folder: expected a repository")
        if GIT in place.parts or run_git("rev-parse", "--is-bare-repository", folder=place).strip() == "true":
            raise ConfigurationError(f"{folder} has no working tree: expected a repository with files")
        top = run_git("rev-parse", "--show-toplevel", folder=place).removesuffix("\n")
        if not top:
            return cls(place, git=False, head=None, inside=Path())
        head = run_git("rev-parse", "-q", "--verify", "HEAD^{commit}", folder=place).strip() or None
        return cls(Path(top), git=True, head=head, inside=place.relative_to(Path(top).resolve()))

    def names(self, ignored: Sequence[str] = ()) -> list[str]:
        """Files of the working tree, tracked or untracked, and chosen files among those that git ignores.

        Args:
            ignored: git's path patterns of ignored files.

        Raises:
            ConfigurationError: a pattern matches no ignored file.
        """
        listing = ("ls-files", "-z", "--exclude-standard")
        names = set(run_git(*listing, "-co", folder=self.top).split("\0"))
        for pattern in ignored:
            more = set(run_git(*listing, "-oi", "--", pattern, folder=self.top).split("\0"))
            if not more - {""}:
                raise ConfigurationError(f"--include {quoted(pattern)} matches no file that git ignores in {self.top}")
            names |= more
        return sorted(names - {""})


def run_git(*arguments: str, folder: Path, text: str = "", extra: Mapping[str, str] | None = None) -> str:
    """Run git, and return what it prints; "" if it fails, or is not installed. Variables such as GIT_DIR are unset."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = {**clean, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **(extra or {})}
    command = ["git", "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(command, cwd=folder, env=environment, input=os.fsencode(text), capture_output=True)
    except FileNotFoundError:
        return ""
    return os.fsdecode(done.stdout) if done.returncode == 0 else ""


def make_base(repository: Repository, target: Path, ignored: Sequence[str] = ()) -> None:
    """Copy the files of the working tree, without `.git`: the state that is compared with later.

    Raises:
        ConfigurationError: see `Repository.names`; or files are to be chosen among those that git ignores, without git.
        ForkError: a file cannot be copied.
        StorageError: the target cannot be written.
    """
    with storage_errors(target), locked(repository.top, shared=True):
        if not repository.git:
            if ignored:
                raise ConfigurationError("--include chooses files that git ignores, but there is no git: remove it")
            copy_apart(repository.top, target)
            return
        target.mkdir()
        made = {target}
        for name in repository.names(ignored):
            source, copied = repository.top / name, target / name
            if copied.parent not in made:
                copied.parent.mkdir(parents=True, exist_ok=True)
                made.add(copied.parent)
            if source.is_dir() and not source.is_symlink():  # A submodule, or a repository in the repository.
                copy_apart(source, copied)
            elif os.path.lexists(source):  # A tracked file may have been deleted.
                _check_regular(source)
                copy_file(repository.top, target, name)


def _check_regular(path: Path) -> None:
    if not path.is_symlink() and not path.is_file():
        raise ConfigurationError(f"{path} is a pipe, a socket or a device, which cannot be copied: ignore it in git")


def make_copy(repository: Repository, base: Path, target: Path) -> None:
    """Copy the base, and give the copy a `.git` of its own.

    Raises:
        StorageError: the target cannot be written.
        WorldError: git cannot create the `.git`.
    """
    with storage_errors(target):
        copy_apart(base, target)
        if repository.git:
            _make_git(repository, target)


def _make_git(repository: Repository, target: Path) -> None:
    top, git = repository.top, target / GIT
    kind = run_git("rev-parse", "--show-object-format", folder=top).strip() or "sha1"
    run_git("init", "-q", "--template=", f"--object-format={kind}", folder=target)
    if not (git / "objects").is_dir():
        raise WorldError(f"git could not create a repository in {target}: try `git init` there")
    where = ("objects", "index", "info", "shallow")
    objects, index, info, shallow = (_git_path(top, name) for name in where)
    (git / "objects" / "info").mkdir(exist_ok=True)
    (git / "objects" / "info" / "alternates").write_text(f"{objects}\n")
    refs = run_git("for-each-ref", "--format=%(objectname) %(refname)", folder=top).splitlines(keepends=True)
    (git / "packed-refs").write_text("".join(line for line in refs if not line.endswith(" refs/stash\n")))
    branch = run_git("symbolic-ref", "-q", "HEAD", folder=top)
    (git / "HEAD").write_text(f"ref: {branch}" if branch else f"{repository.head}\n")
    _copy_present(git, index, *index.parent.glob("sharedindex.*"), shallow)
    _copy_present(git / "info", *(info / name for name in ("exclude", "attributes", "sparse-checkout")))
    settings = run_git("config", "--local", "-z", "--get-regexp", _COPIED_SETTINGS, folder=top)
    own = _SETTINGS.format(version=0 if kind == "sha1" else 1, devnull=os.devnull)
    own += "" if kind == "sha1" else f"[extensions]\n\tobjectFormat = {kind}\n"
    (git / "config").write_text(own + "".join(_setting(each) for each in settings.split("\0") if each))


def _git_path(top: Path, name: str) -> Path:
    return Path(run_git("rev-parse", "--path-format=absolute", "--git-path", name, folder=top).removesuffix("\n"))


def _copy_present(target: Path, *sources: Path) -> None:
    target.mkdir(exist_ok=True)
    for source in sources:
        if source.is_file():
            shutil.copy2(source, target / source.name)


def _setting(entry: str) -> str:
    name, _, value = entry.partition("\n")
    section, _, rest = name.partition(".")
    part, _, key = rest.rpartition(".")
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    heading = f'[{section} "{part}"]' if part else f"[{section}]"
    return f'{heading}\n\t{key} = "{text}"\n'


def changes_in(repository: Repository, base: Path, copy: Path) -> list[FileChange]:
    """Compare a copy with the base, without `.git`, what git ignores, and caches of Python's tools.

    Raises:
        WorldError: the copy does not exist any more, or holds something that cannot be compared.
    """
    if copy.is_symlink() or not copy.is_dir():
        raise WorldError("the agent deleted its copy of the repository")
    before, after = named_files(base), named_files(copy)
    try:
        changed = sorted(name for name in before | after if not same(base, copy, name))
    except OSError as error:
        raise WorldError(f"the copy cannot be compared: {excerpt(str(error), 150)}") from error
    special = [name for name in after if not _is_comparable(copy / name)]
    if special:
        raise WorldError(f"the copy holds pipes, sockets or devices: {listed(special)}")
    ignored = {*_ignored(repository, base, before.intersection(changed))}
    ignored |= {*_ignored(repository, copy, after.intersection(changed) - before)}
    return [
        FileChange(name, "added" if name not in before else "deleted" if name not in after else "modified")
        for name in changed
        if name not in ignored and (name in before or not JUNK.intersection(Path(name).parts))
    ]


def named_files(folder: Path) -> set[str]:
    """Return the files and links in a folder, without those of `.git`."""
    return {name for name in files_in(folder) if GIT not in Path(name).parts}


def _is_comparable(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _ignored(repository: Repository, folder: Path, names: Collection[str]) -> Iterator[str]:
    """Yield the names that git ignores by the rules of the repository and the `.gitignore` files of a folder."""
    if not repository.git:
        return
    nested = {place.parent.relative_to(folder) for place in folder.rglob(GIT) if place.parent != folder}
    asked = [name for name in names if not nested.intersection(Path(name).parents)]
    where = {"GIT_DIR": str(_git_path(repository.top, ".")), "GIT_WORK_TREE": str(folder)}
    answer = run_git("check-ignore", "--stdin", "-z", folder=folder, text="\0".join(asked), extra=where)
    yield from filter(None, answer.split("\0"))


def changed_meanwhile(repository: Repository, base: Path) -> list[str]:
    """Files that changed in the original: by the user, or by an agent that wrote outside its copy."""
    return [name for name in sorted(named_files(base)) if _stamp(base / name) != _stamp(repository.top / name)]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        state = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (0, 0) if path.is_symlink() else (state.st_size, state.st_mtime_ns)


def matching(names: Collection[str], patterns: Sequence[str]) -> set[str]:
    """Return the names that are a pattern, lie in a folder of that name, or match it as a shell would (`**` too)."""
    expressions = [re.compile(_expression(pattern)) for pattern in patterns]
    return {name for name in names if any(expression.fullmatch(name) for expression in expressions)}


def _expression(pattern: str) -> str:
    pieces = re.split(r"(\*\*/?|\*|\?)", pattern.removeprefix("./").rstrip("/"))
    kinds = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(kinds.get(piece, re.escape(piece)) for piece in pieces) + "(?:/.*)?"


def replace_with(names: Collection[str], source: Path, target: Path, kept: Path) -> None:
    """Give files of `target` the state that they have in `source`, and move the former ones to `kept`."""
    for name in sorted(names):
        old = target / name
        if os.path.lexists(old):
            (kept / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(old, kept / name)
        if os.path.lexists(source / name):
            for parent in reversed(Path(name).parents[:-1]):
                if not is_inside((target / parent).resolve(), target.resolve()):
                    (target / parent).unlink()  # The agent put a link out of its copy in the folder's place.
            copy_file(source, target, name)
