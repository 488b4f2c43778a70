"""Keep git repositories in a copied folder apart from the repositories of the original.

A copy of a worktree or a submodule gets a repository of its own, as do borrowed objects (alternates); the worktrees of
the original are unknown to it, and no hooks run, because both lead to absolute paths. What a particle commits, stashes
or branches stays in its copy.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from amc_agents.envs.real.copying import GIT, Method, OutsideLinks, copy_tree, is_inside
from amc_agents.errors import ConfigurationError
from amc_agents.files import replace_file

_VARIABLES = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
)  # fmt: skip
_POINTER = re.compile(r"gitdir: (.+)")
_WORKTREE = re.compile(r'(?im)^(?:\s*\[[^\]]*\])?[ \t]*worktree[ \t]*=[ \t]*"?([^"\n;#]+)')
_REPLACED = re.compile(r"(?im)^(\s*\[[^\]]*\])?[ \t]*(?:worktree|hookspath|fsmonitor)[ \t]*=.*\n?")
_OWN_SETTINGS = f"[core]\n\thooksPath = {os.devnull}\n\tfsmonitor = false\n"
_WITHOUT_REPOSITORIES = {"objects", "refs", "logs", "hooks", "info"}


def refuse_variables() -> None:
    """Refuse to go on if a variable leads git in every folder to one repository, as in the hooks of git.

    Raises:
        ConfigurationError: such a variable is set.
    """
    found = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    if found:
        raise ConfigurationError(
            f"DirectoryFork refuses the environment variable {found[0]:.200}: git in the particles' copies would write "
            "there. Unset it"
        )


def copy_apart(
    source: Path,
    target: Path,
    *,
    outside_links: OutsideLinks = "keep",
    may_lack: Callable[[str], bool] = lambda name: False,
    base: Path | None = None,
) -> Method:
    """Copy a folder as `copy_tree` does, and keep its git repositories apart from those of the source."""
    method = copy_tree(source, target, outside_links=outside_links, may_lack=may_lack, base=base)
    _Separation(Path(os.path.realpath(source)), Path(os.path.realpath(target))).run()
    return method


def check_apart(folder: Path) -> None:
    """Ask git whether the repositories of a copy lie in the copy.

    Raises:
        ConfigurationError: git would write elsewhere, for example because of a configuration that cannot be seen here.
    """
    folder = Path(os.path.realpath(folder))
    where = ("--git-dir", "--git-common-dir", "--git-path", "objects", "--git-path", "index", "--show-toplevel")
    for place in _places(folder):
        answer = _git("rev-parse", "--path-format=absolute", *where, folder=place.parent)
        wrong = [line for line in answer.splitlines() if os.path.isabs(line) and not is_inside(line, folder)]
        if wrong:
            raise ConfigurationError(
                f"git in a copy of the folder would write to {wrong[0]:.200}, outside of the copy: remove "
                "core.worktree and similar settings from git's configuration (git config --show-origin --list)"
            )


def repositories_in(folder: Path) -> set[Path]:
    """Return the repositories in a copy to which `.git` files point, such as `.bare`, by their relative paths."""
    top = Path(os.path.realpath(folder))
    pointed = {_common(each) for place in _places(top) if (each := _pointed(place, place.parent)) is not None}
    return {repository.relative_to(top) for repository in pointed if is_inside(repository, top)}


def ignored_by_git(folder: Path, names: Collection[str], original: Path) -> set[str]:
    """Return the paths that git ignores, by the rules and the index of the copy, as `git status` there.

    Without a repository in the copy, the rules are those of the repository around the original, or else the copy's
    `.gitignore` files. Without git on the PATH, nothing is ignored.

    Args:
        folder: the copy.
        names: relative paths.
        original: the folder that was copied.
    """
    repositories = {place.parent.relative_to(folder).as_posix() for place in _places(folder)}
    groups: dict[str, list[str]] = {}
    for name in names:
        parents = [parent.as_posix() for parent in Path(name).parents]
        if not any((folder / parent).is_symlink() for parent in parents):
            groups.setdefault(next((each for each in parents if each in repositories), ""), []).append(name)
    ignored: set[str] = set()
    for top, group in groups.items():
        if top:
            found = _ignored(folder / top, [os.path.relpath(name, top) for name in group])
            ignored |= {os.path.normpath(os.path.join(top, name)) for name in found}
        elif _git("rev-parse", "--git-dir", folder=original):
            ignored |= _ignored(original, group)
        elif any(Path(parent, ".gitignore").is_file() for parent, _, _ in os.walk(folder)):
            with tempfile.TemporaryDirectory() as empty:
                _git("init", "-q", "--bare", folder=empty)
                rules = (f"--git-dir={empty}", f"--work-tree={folder}", "-c", "core.bare=false")
                ignored |= _ignored(folder, group, *rules)
    return ignored


def merged_text(original: Path, base: Path, changed: Path) -> bytes | None:
    """Merge two changes of a text file by `git merge-file`; None: they cannot be merged, or git is not installed."""
    files = original, base, changed
    if any(file.is_symlink() or not file.is_file() for file in files):
        return None
    command = ["git", "merge-file", "-p", "-q", *map(str, files)]
    try:
        done = subprocess.run(command, cwd=original.parent, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout


def _ignored(folder: Path, names: Collection[str], *options: str) -> set[str]:
    answer = _git(*options, "check-ignore", "--stdin", "-z", folder=folder, text="\0".join(names))
    return set(filter(None, answer.split("\0")))


def _git(*arguments: str, folder: str | Path, text: str = "") -> str:
    """Return what git prints, also if it fails; nothing if git is not installed."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, input=os.fsencode(text), capture_output=True, check=False
        )
    except FileNotFoundError:
        return ""
    return os.fsdecode(done.stdout)


def _places(folder: Path) -> Iterator[Path]:
    """Yield every `.git` in a folder that is not inside another."""
    for parent, folders, names in os.walk(folder):
        if GIT in folders:
            folders.remove(GIT)
            yield Path(parent, GIT)
        elif GIT in names:
            yield Path(parent, GIT)


class _Separation:
    """Separates the repositories of a copy from those of the folder that was copied."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target
        self._adopted: dict[Path, Path] = {}
        """Repositories that were copied from outside of the folder -> where they were."""
        self._claimed: dict[Path, Path] = {}
        """Folders of repositories -> the `.git` files that point to them."""

    def run(self) -> None:
        repositories = {self._repository(place) for place in list(_places(self._target))}
        for top in filter(None, repositories):
            for folder in list(_parts_of(top)):
                self._separate(folder)

    def _repository(self, place: Path) -> Path | None:
        """Return the repository of a `.git`, after making it one inside the copy."""
        if place.is_dir():
            return place.resolve()
        pointed = _pointed(place, self._origin(place.parent))
        if pointed is None:
            return None
        if not is_inside(pointed, self._source):
            return self._adopt(pointed, place) if pointed.is_dir() else None
        inside = self._target / pointed.relative_to(self._source)
        _write(place, f"gitdir: {os.path.relpath(inside, place.parent)}\n")
        self._claimed[inside] = place
        return _common(inside)

    def _adopt(self, pointed: Path, place: Path) -> Path:
        """Replace a `.git` file by a copy of the repository to which it points."""
        common = _common(pointed)
        place.unlink()
        copy_tree(common, place)
        if common != pointed:  # A worktree has its own HEAD, index and so on.
            for parent, _, names in os.walk(pointed):
                for name in {*names} - {"commondir", "gitdir", "locked"}:
                    copied = place / Path(parent).relative_to(pointed) / name
                    copied.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(Path(parent, name), copied)
        self._adopted[place] = common
        return place

    def _separate(self, folder: Path) -> None:
        if (folder / "commondir").is_file():
            if folder not in self._claimed:  # Its worktree is not in the copy.
                shutil.rmtree(folder)
                return
            _write(folder / "gitdir", f"{self._claimed[folder]}\n")
        for name in ("config", "config.worktree"):
            if (folder / name).is_file():
                self._configure(folder / name)
        if (folder / "objects" / "info" / "alternates").is_file():
            self._copy_borrowed(folder / "objects")

    def _configure(self, file: Path) -> None:
        text = os.fsdecode(file.read_bytes())
        if file.parent in self._adopted:  # A bare repository may have worktrees, but no other files.
            text += "[core]\n\tbare = false\n"
        settings = _OWN_SETTINGS
        if worktrees := _WORKTREE.findall(text):
            place = Path(os.path.realpath(self._origin(file.parent) / worktrees[-1].strip()))
            moved = self._target / place.relative_to(self._source) if is_inside(place, self._source) else None
            settings += f"\tworktree = {os.path.relpath(moved or file.parent.parent, file.parent)}\n"
        if not text.endswith(settings):
            _write(
                file, _REPLACED.sub(lambda match: f"{match[1]}\n" if match[1] else "", text).rstrip() + "\n" + settings
            )

    def _copy_borrowed(self, objects: Path) -> None:
        """Copy the objects that a repository reads from others outside of the folder."""
        pending, inside, seen = [(objects, self._origin(objects))], [], set()
        while pending:
            holder, origin = pending.pop()
            for line in os.fsdecode((holder / "info" / "alternates").read_bytes()).splitlines():
                place = Path(os.path.realpath(origin / line.strip()))
                if not line.strip() or line.startswith("#") or place in seen or not place.is_dir():
                    continue
                seen.add(place)
                if is_inside(place, self._source):
                    inside.append(os.path.relpath(self._target / place.relative_to(self._source), objects))
                    continue
                _copy_objects(place, objects)
                if (place / "info" / "alternates").is_file():
                    pending.append((place, place))
        _write(objects / "info" / "alternates", "".join(f"{line}\n" for line in inside))

    def _origin(self, path: Path) -> Path:
        """Return the place from which a path in the copy was copied."""
        for adopted, origin in self._adopted.items():
            if is_inside(path, adopted):
                return origin / path.relative_to(adopted)
        return self._source / path.relative_to(self._target)


def _pointed(place: Path, origin: Path) -> Path | None:
    """Return the repository to which a `.git` file points that was written in the folder `origin`."""
    match = _POINTER.match(os.fsdecode(place.read_bytes())) if place.is_file() else None
    return None if match is None else Path(os.path.realpath(origin / match[1].strip()))


def _parts_of(top: Path) -> Iterator[Path]:
    """Yield a repository, those of its submodules, and the folders of its worktrees."""
    for parent, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name not in _WITHOUT_REPOSITORIES]
        if "HEAD" in names:
            yield Path(parent)


def _common(folder: Path) -> Path:
    """Return the repository of a worktree's folder; another repository is its own."""
    file = folder / "commondir"
    return Path(os.path.realpath(folder / file.read_text().strip())) if file.is_file() else folder


def _copy_objects(source: Path, target: Path) -> None:
    for parent, folders, names in os.walk(source):
        folders[:] = [name for name in folders if name != "info"]
        for name in names:
            copied = target / Path(parent).relative_to(source) / name
            if not copied.exists() and "multi-pack-index" not in name and not name.endswith(".bitmap"):
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(Path(parent, name), copied)


def _write(file: Path, text: str) -> None:
    if not file.exists() or file.read_bytes() != os.fsencode(text):
        replace_file(file, os.fsencode(text))  # The file may be a hard link of a snapshot.
