from __future__ import annotations

import json

import numpy as np
import pytest

from amc_agents.bench.methods import Tuned, amc_hidden, best_of_n, react
from amc_agents.bench.records import Cost, Particles, RunResult, Scores
from amc_agents.bench.report import summarise
from amc_agents.bench.results_folder import ResultsFolder
from tests.operations.page.conftest import make_run as make_run

METHODS = [react(), best_of_n(), amc_hidden(Tuned(steps=(2,)))]
SETTINGS = {"world": "toy", "n_particles": 4, "success": 1.0}


def result(method, task, seed, returns, values, notes=()):
    """A run with these final particles; the pick is the particle with the highest value."""
    pick, single = returns[int(np.argmax(values))], len(returns) == 1
    top = float(np.mean(sorted(returns)[-5:]))
    scores = Scores(max(returns), float(max(returns) >= 1), pick, top, float(np.mean(returns)), top,
                    float(np.mean(returns)), float(np.mean(returns)), len(returns), len(returns))  # fmt: skip
    cost = Cost(10 * len(returns), 1000 * len(returns), 100 * len(returns), 500 * len(returns), 0 if single else 4,
                0 if single else 200, 0, 0, 1.5)  # fmt: skip
    return RunResult(
        method, task, seed, scores, cost, tuple(notes),
        Particles(tuple(returns), tuple(values), tuple(range(len(returns)))),
    )  # fmt: skip


def results_of(n_tasks, seeds=2, text="", methods=METHODS, n=4):
    """Runs in which values are the returns with noise, and more particles of the last method succeed."""
    rng = np.random.default_rng(3)
    records = []
    for task in range(n_tasks):
        for seed in range(seeds):
            for place, method in enumerate(methods):
                size = 1 if method.single else n
                returns = (rng.random(size) < 0.2 + 0.2 * place).astype(float)
                values = np.round(0.5 * returns + 0.4 * rng.random(size), 6)
                notes = (f"a particle failed{text}",) if task == 0 else ()
                records.append(
                    result(method.name, f"task-{task}{text}", seed, returns.tolist(), values.tolist(), notes)
                )
    return records


@pytest.fixture
def bench_folder(tmp_path):
    """Makes a folder as `amc bench` writes it."""

    def make(n_tasks=12, seeds=2, text="", *, complete=True, methods=METHODS, n=4, name="bench"):
        folder, records = tmp_path / name, results_of(n_tasks, seeds, text, methods, n)
        settings = SETTINGS | {"critic": f"hf:x{text}"}
        stored = {method.name: method.as_plain() for method in methods}
        with ResultsFolder(folder, settings, stored) as results:
            for record in records:
                results.add(record)
        if complete:
            summarise(records, methods, settings, command=f"amc bench{text}", seconds=60.0).save(
                folder / "results.json"
            )
        return folder

    return make


@pytest.fixture
def tune_folder(tmp_path):
    """Makes a folder as `amc tune` writes it."""

    def make(text=""):
        def score(mean):
            return {"mean": mean, "standard_error": 0.05, "tasks": 8, "seeds": 1}

        def cell(method, temperature, mean, steps=()):
            scores = {name: score(mean) for name in ("oracle", "top5", "mean", "mean_distinct")}
            scores |= {"deployable": score(mean - 0.1)} if method == "amc-hidden" else {}
            return {"method": method, "temperature": temperature, "steps": list(steps), "beta": 0.1,
                    "success_reward": None, "alpha": 1.0, "k": 5, "scores": scores}  # fmt: skip

        cells = [cell("amc", t, 0.9 - t / 2, (2, 4)) for t in (0.4, 0.8)]
        cells += [cell("amc-hidden", t, 0.5 + t / 10, (2,)) for t in (0.4, 0.8)]
        folder = tmp_path / "tune"
        folder.mkdir()
        table = {"command": f"amc tune{text}", "settings": {"world": "toy", "critic": f"x{text}"},
                 "chosen": {"amc": cells[0], "amc-hidden": cells[3]}, "cells": cells}  # fmt: skip
        (folder / "tuning.json").write_text(json.dumps(table))
        return folder

    return make
