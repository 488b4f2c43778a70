"""The tables of docs/reliability.md, written from the matrix: `python -m tests.faults.page` puts them into the page."""

from __future__ import annotations

from pathlib import Path

from tests.faults.outcomes import FAMILIES, KINDS, NUMBERS, ROWS, Family, Kind, cases
from tests.faults.test_cancelled import NAMES
from tests.faults.test_clock import JUMPS
from tests.faults.test_signals import SIGNALS
from tests.faults.test_storage import ERRORS
from tests.faults.wire import FOREVER
from tests.faults.works import WORKS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
_BLOCK = "<!-- faults: {} -->"


def families() -> str:
    """The faults of each family."""
    shapes = [Family("wrong rows", ROWS), Family("wrong numbers", NUMBERS)]
    rows = [
        f"| {family.name} | {'; '.join(fault.name for fault in family.faults)} |" for family in [*FAMILIES, *shapes]
    ]
    return "\n".join(["| family | faults |", "|---|---|", *rows])


def outcomes() -> str:
    """Family x kind of server -> outcome."""
    rows = [f"| {family.name} | {' | '.join(_cell(kind, family) for kind in KINDS)} |" for family in FAMILIES]
    rows += [f"| wrong rows, wrong numbers | {' | '.join(map(_shapes, KINDS))} |"]
    heads = " | ".join(f"{kind.name}: {', '.join(kind.surfaces)}" for kind in KINDS)
    return "\n".join([f"| | {heads} |", "|---" * (len(KINDS) + 1) + "|", *rows])


def _cell(kind: Kind, family: Family) -> str:
    once, always = (kind.outcome(family, times, "raise") for times in (1, FOREVER))
    return _short(once) if once == always else f"{_short(once)}; always: {_short(always)}"


def _shapes(kind: Kind) -> str:
    return ", ".join(sorted({_short(outcome) for _, outcome in kind.further})) or "not tried"


def _short(outcome: str) -> str:
    name = outcome.removeprefix("refused: ")
    return f"`{name}`" if name != outcome else name


def counts() -> str:
    """How much is tried."""
    every = list(cases())
    names = {case.fault.name for case in every}
    storage = len(WORKS) * len(ERRORS)
    return (
        f"{len(names)} faults of servers in {len(every)} combinations with {sum(len(kind.surfaces) for kind in KINDS)} "
        f"methods and commands; {len(ERRORS)} errors of storage and {len(SIGNALS)} signals at every change that "
        f"{len(WORKS)} works make in their folder ({storage} and {len(WORKS) * len(SIGNALS)} combinations); "
        f"{2 * len(NAMES)} cancelled calls; {len(JUMPS)} jumping clocks."
    )


def written(page: str) -> str:
    """The page with the tables of the matrix."""
    for name, content in (("counts", counts()), ("families", families()), ("outcomes", outcomes())):
        begin, end = _BLOCK.format(name), _BLOCK.format("end")
        before, found, rest = page.partition(f"{begin}\n")
        assert found, name
        page = f"{before}{found}{content}\n{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
