"""Pack the runs of reproduce/distill, and write the tables of docs/results/distill from the packed files.

python reproduce/distill/report.py
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.bench.statistics import Measured, Paired, estimate, paired
from amc_agents.files import replace_file
from amc_agents.markdown import table
from reproduce.distill.distil import AMC, ARMS, BEFORE, BEST_OF, HEATS, RUNS, TRIES_AT
from reproduce.pages import write_parts
from reproduce.study.subsampling import expected_top

PAGE = Path("docs/results/distill/README.md")
RAW = PAGE.parent / "raw"
AIM = 5
"""Best-of-5 before is the aim."""
Lines = Sequence[dict[str, Any]]


def pack() -> None:
    """Store the runs without the imitated tokens. The same runs give the same bytes."""
    RAW.mkdir(exist_ok=True)
    for path in sorted(RUNS.glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        kept = [
            {name: [share for _, share in value] if name == "imitated" else value for name, value in line.items()}
            for line in lines
        ]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        replace_file(RAW / f"{path.name}.gz", gzip.compress(text.encode(), mtime=0))


def lines_of(name: str) -> Lines:
    """Read a packed file; empty if it does not exist."""
    path = RAW / f"{name}.jsonl.gz"
    return (
        [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()] if path.exists() else []
    )


def chosen(name: str) -> str:
    """Return the temperature above 0 at which a policy's plain run scores best on training tasks."""
    return max((f"{heat:g}" for heat in HEATS[1:]), key=lambda heat: mean_of(lines_of(f"train-{name}"), heat))


def mean_of(lines: Lines, heat: str) -> float:
    """Mean return of all runs at a temperature."""
    return float(np.mean([line[heat] for line in lines]))


def measured(lines: Lines, score: Callable[[dict[str, Any]], float]) -> Measured:
    """Score each task."""
    return {(line["task"], 0): score(line) for line in lines}


def plain(name: str) -> Measured:
    """Score a sampled run on each test task."""
    heat = chosen(name)
    return measured(lines_of(f"test-{name}"), lambda line: float(np.mean(line[heat])))


def greedy(name: str) -> Measured:
    """Score the greedy run on each test task."""
    return measured(lines_of(f"test-{name}"), lambda line: float(line["0"][0]))


def best_of_before() -> Measured:
    """Expected best of `AIM` runs of the policy before, on each test task."""
    heat = f"{TRIES_AT:g}"
    return measured(lines_of(f"test-{BEFORE}"), lambda line: expected_top(line[heat], AIM))


def names() -> list[str]:
    """Return the policies that were played on test tasks, by round."""
    played = [f"{arm}-{number}" for number in (1, 2) for arm in ARMS]
    return [BEFORE, *(name for name in played if lines_of(f"test-{name}"))]


def policies() -> Iterator[list[str]]:
    """Yield the rows of the table of policies."""
    before = {"plain": plain(BEFORE), "greedy": greedy(BEFORE)}
    for name in names():
        heats = [f"{mean_of(lines_of(f'train-{name}'), f'{heat:g}'):.3f}" for heat in HEATS]
        cells = [estimated(plain(name)), estimated(greedy(name))]
        gains = (
            [""] * 2
            if name == BEFORE
            else [shown(paired(plain(name), before["plain"])), shown(paired(greedy(name), before["greedy"]))]
        )
        yield [name, *heats, chosen(name), cells[0], gains[0], cells[1], gains[1]]


def comparisons() -> Iterator[list[str]]:
    """Yield the rows of the other comparisons."""
    aim = best_of_before()
    yield [f"Best-of-{AIM} before", estimated(aim)]
    for number in (1, 2):
        ours, theirs = f"{AMC}-{number}", f"{BEST_OF}-{number}"
        if ours in names() and theirs in names():
            yield [f"plain run, {ours} minus {theirs}", shown(paired(plain(ours), plain(theirs)))]
            yield [f"greedy run, {ours} minus {theirs}", shown(paired(greedy(ours), greedy(theirs)))]
    for name in names():
        yield [f"greedy run, {name} minus Best-of-{AIM} before", shown(paired(greedy(name), aim))]


def collections() -> Iterator[list[str]]:
    """Yield what each arm collected, over all of its tasks."""
    for number in (1, 2):
        for arm in ARMS:
            lines = lines_of(f"collected-{arm}-{number}")
            if lines:
                wins = [line for line in lines if line["success"]]
                means = [
                    np.mean([line[each] for line in lines]) for each in ("calls", "policy_tokens", "critic_tokens")
                ]
                imitated = sum(len(line["imitated"]) for line in wins)
                yield [
                    f"{arm}-{number}",
                    str(len(lines)),
                    f"{len(wins) / len(lines):.3f}",
                    *(f"{mean:,.0f}" for mean in means),
                    str(imitated),
                ]


def estimated(scores: Measured) -> str:
    """Show a mean with its standard error."""
    found = estimate(scores)
    return f"{found.mean:.3f} ± {found.standard_error or 0:.3f}"


def shown(difference: Paired) -> str:
    """Show a difference, bold if its interval excludes 0."""
    text = f"{difference.difference:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    return f"**{text}**" if difference.low > 0 or difference.high < 0 else text


def main() -> None:
    """Write the tables between the page's markers."""
    pack()
    of_training = [f"training tasks, T {heat:g}" for heat in HEATS]
    parts = {
        "collected": table(
            [
                "arm and round",
                "training tasks",
                "with a success",
                "policy calls",
                "policy tokens",
                "critic tokens",
                "trajectories to imitate",
            ],
            collections(),
            "lrrrrrr",
        ),
        "policies": table(
            ["policy", *of_training, "plain run's T", "plain run", "minus before", "greedy run", "minus before"],
            policies(),
            "lrrrrrrrrr",
        ),
        "comparisons": table(["", "score or difference"], comparisons(), "lr"),
    }
    write_parts(PAGE, parts)


if __name__ == "__main__":
    main()
