"""The raw result of one run of a comparison: one line of a results folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from amc_agents.bench.results_folder import checked_numbers, read_results
from amc_agents.bench.scores import Cost, Particles, Scores
from amc_agents.bench.work import ItemKey
from amc_agents.quoting import quoted


@dataclass(frozen=True)
class RunResult:
    """The scores and the cost of one run."""

    method: str
    task: str
    seed: int
    """Seed of the comparison. The seed of the run is derived from it, the task and the method."""
    scores: Scores
    cost: Cost
    notes: tuple[str, ...] = ()
    """Notes of the run, such as lost particles or a critic that fell back."""
    particles: Particles | None = None
    """The particles behind the scores; None in results of older versions."""
    prompt: str | None = None
    """Hash of the agent's input, such as its system prompt and the task; None in results of older versions."""

    @property
    def key(self) -> ItemKey:
        """The key of the work item."""
        return self.method, self.task, self.seed

    def to_json(self) -> dict[str, Any]:
        """Convert to plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunResult:
        """Invert `to_json`. Raises `KeyError` or `TypeError` for other values."""
        particles = values.get("particles")
        key = (values["method"], values["task"], values["seed"])
        if [type(part) for part in key] != [str, str, int]:
            raise TypeError(f"the key is {quoted(key)}: expected a method, a task and a seed")
        for returns in (particles or {}).get("returns", ()), (particles or {}).get("same_as", ()):
            checked_numbers({f"particle {number}": value for number, value in enumerate(returns)})
        return cls(
            *key,
            scores=Scores(**checked_numbers(values["scores"])),
            cost=Cost(**checked_numbers(values["cost"])),
            notes=tuple(values["notes"]),
            particles=Particles(**{name: tuple(row) for name, row in particles.items()}) if particles else None,
            prompt=values.get("prompt"),
        )


def read_run_results(path: str | Path) -> list[RunResult]:
    """Read all run results of a folder; see `results_folder.read_results`."""
    return read_results(path, RunResult.from_json)
