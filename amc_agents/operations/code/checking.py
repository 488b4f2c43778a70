"""The check: a command whose exit status decides, run on the user's own version of the files that it reads.

A check that passes on the untouched files cannot tell agents apart. A check that gives the same result in a copy whose
source files were broken on purpose reads other files than the copy's, usually through an editable installation.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from amc_agents.errors import ConfigurationError
from amc_agents.operations.code.copies import matching, named_files
from amc_agents.operations.code.running import Ended, Place, run_command, shell
from amc_agents.quoting import excerpt, quoted

_SOURCES = frozenset(
    ".py .pyx .js .jsx .mjs .cjs .ts .tsx .vue .go .rs .c .h .cc .cpp .hpp .java .kt .scala .swift .rb .php .cs .ex "
    ".hs .lua .sh .pl .r .jl .sql".split()
)
_BROKEN = "amc-agents broke this file on purpose ((( {{{ [[[ '\n"
_TESTS = re.compile(r"(^|[/_.-])(tests?|specs?|conftest|setup|noxfile|conf|config)([/_.-]|$)|[a-z](Test|Spec)s?\.")
_VARYING = re.compile(r"0x[0-9a-fA-F]+|/tmp/\S+|[0-9]+|\s+|=+|-{3,}")


@dataclass(frozen=True, slots=True)
class Check:
    """A check and the files that agents cannot change for it."""

    command: str
    """A line of shell."""
    protect: tuple[str, ...] = ()
    """Patterns of files that have the user's version in the check; files named in the command are always protected."""
    seconds: float | None = None
    """Time limit; a check that takes longer has failed."""

    def protected(self, names: set[str]) -> set[str]:
        """The protected ones among files: those of the patterns, and files and folders that the command names."""
        return matching(names, [*self.protect, *_words(self.command)])

    async def run(self, place: Place, name: str = "check") -> Ended:
        """Run the check in a copy."""
        return await run_command(shell(self.command), place, name, seconds=self.seconds)


def _words(command: str) -> list[str]:
    """Words of a command that can be paths of the repository."""
    try:
        words = shlex.split(command, comments=False)
    except ValueError:
        words = command.split()
    paths = [word.partition("::")[0].removeprefix("./").rstrip("/") for word in words]
    return [path for path in paths if re.fullmatch(r"[\w][\w./ -]*", path) and path not in (".", "..")]


async def check_untouched(check: Check, place: Place, *, trusted: bool) -> list[str]:
    """Run the check on untouched files, and on files broken on purpose; return notes for the user.

    Args:
        check: the check.
        place: a copy of the repository, which is broken.
        trusted: whether a check that does not react to broken files is accepted.

    Raises:
        ConfigurationError: the check passes, cannot be run, or does not see the copy.
    """
    untouched = await check.run(place, "untouched")
    if untouched.status == 0:
        raise ConfigurationError(
            f"the check passes on the untouched files, so it cannot tell whether an agent did its work: "
            f"{quoted(check.command)} must fail now, and pass when the work is done"
        )
    if untouched.status in (126, 127):
        raise ConfigurationError(
            f"the check cannot be run (exit status {untouched.status}): {excerpt(untouched.tail(300), 200)}"
        )
    names = named_files(place.copy)
    broken = sorted(_breakable(names - check.protected(names)))
    if not broken:
        return ["no source files were found to break, so that the check may read other files than a copy's"]
    async with AsyncExitStack() as stack:
        for name in broken:
            stack.callback((place.copy / name).write_bytes, (place.copy / name).read_bytes())
            (place.copy / name).write_text(_BROKEN)
        reaction = await check.run(place, "broken")
    if _result(untouched, place) != _result(reaction, place):
        return []
    if not untouched.tail().strip():
        return ["the check prints nothing, so it is unknown whether it sees the copies: let it print what it finds"]
    cause = (
        f"the check gave the same result when {len(broken)} source files of a copy were broken on purpose, such as "
        f"{broken[0]}, so it does not see the copies"
    )
    if trusted:
        return [f"{cause}; accepted by --trust-check"]
    raise ConfigurationError(
        f"{cause}. Usually an editable installation or a virtual environment leads to the original: let the check "
        "import from its own folder (--env PYTHONPATH={copy} or {copy}/src), or install the copy in the check. If it "
        "need not read these files: --trust-check"
    )


def _breakable(names: set[str]) -> list[str]:
    return [name for name in names if PurePosixPath(name).suffix.lower() in _SOURCES and not _TESTS.search(name)]


def _result(ended: Ended, place: Place) -> tuple[int | None, str]:
    """What a check said, without what differs from run to run."""
    return ended.status, _VARYING.sub(" ", ended.tail(100_000).replace(str(place.copy), ""))


def read_by_checks(names: Sequence[str]) -> list[str]:
    """The files among changed ones that look like tests or their configuration."""
    return [name for name in names if _TESTS.search(name)]


def former_versions(place: Place) -> Path:
    """The folder of an agent's versions of protected files."""
    return place.state / "left-out"
