"""Write the tables of docs/results/larger from the packed runs.

python reproduce/larger/larger_report.py    # with the PYTHONPATH of larger.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from amc_agents.bench.statistics import estimate, paired
from amc_agents.markdown import table as table_in_markdown
from reproduce.dose.doses import BOTH
from reproduce.dose.gains import Lines, Row, interval, lines_of, row_of
from reproduce.dose.playing import read_particles
from reproduce.dose.report import shown
from reproduce.larger.larger import EXACT, HERE, LEARNED, ORACLE, PAGE, RANKED_STEPS, packed
from reproduce.pages import write_parts
from reproduce.study.subsampling import expected_pick


def rows_of(policy: str) -> dict[str, Row]:
    """Return each critic's comparison with Best-of-M; the learned critic's tokens are counted, the others' not."""
    chosen = json.loads((HERE / "chosen.json").read_text(encoding="utf-8"))[policy]
    table = lines_of(packed(policy, "test"))
    heat = chosen[ORACLE]["best_of"]
    table[EXACT, f"pool_T{heat:g}"] = table[ORACLE, f"pool_T{heat:g}"]
    return {
        critic: row_of(BOTH, table, critic, of["setting"], of["best_of"], charged=critic == LEARNED)
        for critic, of in chosen.items()
        if (critic, of["setting"]) in table
    }


def picks_table(policy: str) -> str:
    """Picks of AMC and of Best-of-M at equal tokens; those of the learned critic are counted."""
    body = []
    for critic, row in rows_of(policy).items():
        picks = [estimate(of) for of in (row.picks, row.matched)]
        cells = [f"{of.mean:.3f} ± {of.standard_error:.3f}" for of in picks]
        body.append([critic, shown(row.setting), str(len(row.picks)), *cells, f"{row.tries:.1f}", interval(row.gain)])
    header = ["critic", "temperature, every, beta", "tasks", "AMC's pick", "Best-of-M's pick", "M", "gain"]
    return table_in_markdown(header, body, "llrrrrr")


def areas(policy: str, steps: Sequence[int] = RANKED_STEPS) -> dict[str, dict[tuple[str, int], float]]:
    """Critic -> task -> AUC of unfinished states after these steps, averaged over them; the same tasks for all."""
    critics = {critic: lines for (critic, _), lines in lines_of(packed(policy, "ranked")).items()}
    known: dict[str, dict[tuple[str, int], float]] = {}
    for critic, lines in critics.items():
        known[critic] = {(task, 0): mean for task, line in lines.items() if (mean := _mean(line["auc"], steps)) >= 0}
    common = set.intersection(*map(set, known.values()))
    return {critic: {task: of[task] for task in sorted(common)} for critic, of in known.items()}


def _mean(by_step: Mapping[str, float], steps: Sequence[int]) -> float:
    """Average; -1 if no step has both outcomes."""
    some = [area for step, area in by_step.items() if int(step) in steps]
    return float(np.mean(some)) if some else -1.0


def ranking_table(policy: str) -> str:
    """AUCs of all critics after each step, and their differences."""
    body = []
    for steps in (RANKED_STEPS, *((step,) for step in RANKED_STEPS)):
        of = areas(policy, steps)
        for critic in (EXACT, ORACLE, LEARNED):
            measured = estimate(of[critic])
            name = f"all {len(steps)}" if len(steps) > 1 else str(steps[0])
            differences = [
                "" if critic in (other, LEARNED) else interval(paired(of[critic], of[other]))
                for other in (LEARNED, ORACLE)
            ]
            mean = f"{measured.mean:.3f} ± {measured.standard_error:.3f}"
            body.append([name, str(measured.tasks), critic, mean, *differences])
    return table_in_markdown(["after step", "tasks", "critic", "AUC", "minus learned", "minus oracle"], body, "rrlrrr")


def ends_table(policy: str) -> str:
    """The pick of Best-of-M among the tries of the ranking, by the learned critic and by the return."""
    tries = {critic: lines for (critic, _), lines in lines_of(packed(policy, "ranked")).items()}
    body = []
    for m in (1, 5, 10, 15):
        picks = [
            estimate({(task, 0): expected_pick(read_particles(line), m, "deployable") for task, line in lines.items()})
            for lines in (tries[LEARNED], tries[EXACT])
        ]
        body.append([str(m), *(f"{each.mean:.3f} ± {each.standard_error:.3f}" for each in picks)])
    title = f"picked by learned, {len(tries[LEARNED])} tasks"
    return table_in_markdown(["M", title, "picked by the hidden return"], body, "rrr")


def pools(policy: str) -> str:
    """Success of single runs by temperature, on the tuning tasks."""
    found: dict[str, Lines] = {
        setting: lines for (critic, setting), lines in lines_of(packed(policy, "tune")).items() if critic == LEARNED
    }
    body = []
    for setting in sorted(name for name in found if name.startswith("pool")):
        success = estimate({(task, 0): float(np.mean(line["returns"])) for task, line in found[setting].items()})
        body.append([setting.removeprefix("pool_T"), f"{success.mean:.3f} ± {success.standard_error:.3f}"])
    return table_in_markdown(["temperature", "success of a single run"], body, "rr")


def main() -> None:
    """Write the tables between the page's markers."""
    parts = {}
    for policy in ("larger", "shipped"):
        if packed(policy, "test").exists():
            parts[f"{policy}-picks"] = picks_table(policy)
        if packed(policy, "tune").exists():
            parts[f"{policy}-pools"] = pools(policy)
        if packed(policy, "ranked").exists():
            parts |= {f"{policy}-ranking": ranking_table(policy), f"{policy}-ends": ends_table(policy)}
    write_parts(PAGE, parts)


if __name__ == "__main__":
    main()
