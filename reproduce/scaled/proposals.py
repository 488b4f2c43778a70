"""Particles of several temperatures in one population, with the scaled critic; see docs/results/scaled/README.md.

python reproduce/scaled/proposals.py tune WORLD    # the setting, on training tasks; resumes
python reproduce/scaled/proposals.py play WORLD --tasks 400    # fresh test tasks; resumes
python reproduce/scaled/proposals.py report        # the tables of the page
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

from amc_agents.bench.statistics import paired
from amc_agents.files import replace_file
from reproduce.dose import playing
from reproduce.dose.doses import BOTH, HARD, Setting
from reproduce.dose.gains import interval, lines_of, row_of
from reproduce.dose.report import table_of
from reproduce.dose.tune import best, metric_of, scores_of
from reproduce.pages import write_parts
from reproduce.scaled.scaled import PAGE, SCALED, WORLDS, chosen, pack, packed, parsed, prepare, tasks_of

CHOSEN = Path(__file__).parent / "proposals.json"
TRIED = tuple(Setting(*each) for each in product(((0.5, 0.7, 0.9), (0.7, 0.9, 1.1)), (2, 3), (0.1, 0.25)))
N_TUNING = 96
POOLS = {BOTH: 20, HARD: 25}
"""Independent tries of a fresh task. In crafting, the tokens of AMC and its critic pay for more than 20."""
GROUP = "fresh"


def tune(name: str) -> None:
    """Choose the setting on the tasks of the last round of `scaled.py tune`."""
    prepare()
    tasks = tasks_of(name, "tune", N_TUNING)
    lines = playing.play(name, "tune", 0, tasks, [(SCALED, setting) for setting in TRIED], {})
    scores, ids = scores_of(lines, metric_of(name)), [task.id for task in tasks]
    merits = {each.name: round(sum(scores[SCALED, each.name][key] for key in ids) / len(ids), 4) for each in TRIED}
    table = json.loads(CHOSEN.read_text(encoding="utf-8")) if CHOSEN.exists() else {}
    table[name] = {"amc": best(scores, SCALED, [each.name for each in TRIED], ids, 1)[0], "tried": merits}
    replace_file(CHOSEN, (json.dumps(table, indent=1, sort_keys=True) + "\n").encode())


def settings_of(name: str) -> list[Setting]:
    """Return the chosen setting with several temperatures, and the one with a single temperature."""
    of = json.loads(CHOSEN.read_text(encoding="utf-8"))[name]["amc"]
    return [next(each for each in TRIED if each.name == of), chosen(name, SCALED)[0]]


def play(name: str, n_tasks: int) -> None:
    """Play both settings and the pool, and pack the runs."""
    prepare()
    heat = chosen(name, SCALED)[1]
    runs = [(SCALED, setting) for setting in settings_of(name)]
    playing.play(name, GROUP, 0, tasks_of(name, GROUP, n_tasks), runs, {heat: [SCALED]}, [SCALED], POOLS[name])
    pack(name, GROUP)


def report() -> None:
    """Write the tables between the page's markers."""
    for name in WORLDS:
        if packed(name, GROUP).exists():
            table, heat = lines_of(packed(name, GROUP)), chosen(name, SCALED)[1]
            several, single = (
                row_of(name, table, SCALED, setting.name, heat, charged=True) for setting in settings_of(name)
            )
            difference = interval(paired(several.picks, single.picks))
            part = f"{table_of([several, single])}\n\nAMC's pick, several minus single: {difference}."
            write_parts(PAGE, {f"{name}-{GROUP}": part})


def main() -> None:
    """Execute a command."""
    options = parsed(__doc__, ["tune", "play", "report"])
    match options.command:
        case "tune":
            tune(options.world)
        case "play":
            play(options.world, options.tasks)
        case _:
            report()


if __name__ == "__main__":
    main()
