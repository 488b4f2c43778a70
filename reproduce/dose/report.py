"""Write the tables and the figure of docs/results/dose from the packed runs.

python reproduce/dose/report.py
... python reproduce/dose/report.py WORLD --first 250 --last 500    # print the tables of some of the test tasks
... python reproduce/dose/report.py WORLD --best                    # by the best trajectory instead of the pick

Both print their tables and write nothing.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from amc_agents.bench.statistics import estimate
from amc_agents.markdown import table as table_in_markdown
from reproduce.dose.dose_figure import draw
from reproduce.dose.doses import LEARNED, WORLDS
from reproduce.dose.gains import (
    Bounded,
    Row,
    Table,
    below_the_line,
    crossing,
    endpoint_rows,
    interval,
    levels_of,
    lines_of,
    packed,
    rows_of,
    slope,
)
from reproduce.dose.held_out import PAGE
from reproduce.dose.learned_table import learned_of
from reproduce.pages import write_parts


def line_of(rows: Sequence[Row]) -> str:
    """Describe the line through the levels; nothing if the oracle is alone."""
    levels = levels_of(rows)
    if len(levels) == 1:
        return ""
    whole, others = slope(levels), slope([row for row in levels if row.critic != "oracle"])
    text = f"Slope of the gain over the AUC: {interval(whole)}; without the oracle {interval(others)}."
    if whole.low <= 0:
        return f"{text} Where the line crosses 0 is not known: its slope may be 0."
    text += f" The line crosses 0 at an AUC of {_bounded(crossing(levels), '.3f')}."
    learned = [row for row in rows if row.critic.startswith(LEARNED)]
    below = [f"`{row.critic}` {_bounded(below_the_line(levels, row), '+.3f')}" for row in learned]
    return f"{text} Below the line, at their AUC: {', '.join(below)}." if below else text


def _bounded(found: Bounded, form: str) -> str:
    return f"{found.mean:{form}} [{found.low:{form}}, {found.high:{form}}]"


def table_of(rows: Sequence[Row]) -> str:
    """Format rows as Markdown."""
    header = ["critic", "AUC, unfinished", "AUC, final", "AMC: temperature, every, beta", "tasks"]
    header += ["AMC's pick", "Best-of-M's pick", "M, temperature", "gain"]
    return table_in_markdown(header, map(cells_of, rows), "lrrlrrrrr")


def cells_of(row: Row) -> list[str]:
    """Return a row's cells."""
    areas = ["" if math.isnan(area) else f"{area:.3f}" for area in (row.auc, row.at_end)]
    picks = [f"{estimate(scores).mean:.3f}" for scores in (row.picks, row.matched)]
    return [
        row.critic,
        *areas,
        shown(row.setting),
        str(len(row.picks)),
        *picks,
        f"{tries_of(row)}, {row.heat:g}",
        interval(row.gain),
    ]


def tries_of(row: Row) -> str:
    """Show M; where the pool has fewer tries, the pool's number, of those that would cost as much."""
    return f"{row.tries:.1f}" if row.tries <= row.most else f"{row.most} of {row.tries:.1f}"


def shown(setting: str) -> str:
    """Show temperature, schedule and beta of a setting."""
    heat, every, beta = setting.split("_")
    return f"{heat[1:]}, {every.removeprefix('every')}, {beta.removeprefix('beta')}"


def some_tasks(table: Table, first: int, last: int) -> Table:
    """Keep the lines of the test tasks from one number to another, counted from 0."""
    tasks = {task for lines in table.values() for task in lines}
    kept = set(sorted(tasks, key=lambda task: int(task.rpartition("/")[2]))[first:last])
    of = {run: {task: line for task, line in lines.items() if task in kept} for run, lines in table.items()}
    return {run: lines for run, lines in of.items() if lines}


def show(name: str, table: Table, *, best: bool) -> None:
    """Print the tables of a world."""
    rows = rows_of(name, table, "oracle" if best else None)
    print(f"{table_of(rows)}\n\n{line_of(rows)}")
    if not best:
        print(f"\nWith the critic's tokens counted:\n\n{table_of(endpoint_rows(name, table))}")


def write() -> None:
    """Write the tables between the page's markers, and the figure."""
    tables = {name: lines_of(packed(name)) for name in WORLDS}
    curves = {name: rows_of(name, table) for name, table in tables.items()}
    for name, rows in curves.items():
        parts = {
            f"{name}-endpoint": table_of(endpoint_rows(name, tables[name])),
            f"{name}-curve": f"{table_of(rows)}\n\n{line_of(rows)}".rstrip(),
        }
        write_parts(PAGE, parts)
    write_parts(PAGE, {"learned": learned_of(tables)})
    draw({name: rows for name, rows in curves.items() if len(levels_of(rows)) > 1})


def main() -> None:
    """Write the page, or print a world's tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", nargs="?", choices=WORLDS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=500)
    parser.add_argument("--best", action="store_true", help="compare the best trajectories instead of the picks")
    options = parser.parse_args()
    if options.world is None:
        write()
    else:
        table = some_tasks(lines_of(packed(options.world)), options.first, options.last)
        show(options.world, table, best=options.best)


if __name__ == "__main__":
    main()
