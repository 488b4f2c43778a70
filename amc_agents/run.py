"""The result of a run, as a value, and its printed summary."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, Self

from amc_agents.commits import Commit, CommitTools, DeferredCalls
from amc_agents.files import replace_file, storage_errors
from amc_agents.prices import cost
from amc_agents.quoting import excerpt, quoted
from amc_agents.types import FloatArray, IntArray, Trajectory, fields_of, plain
from amc_agents.usage import Usage

RUN_FILE = "run.json"
"""File of a saved run in its folder."""
_MOST_ROLES = 5
_MOST_NOTES = 5
_MOST_COMMITS = 3
_MOST_POINTS = 6
_WIDTH = 160
"""Maximum number of characters of a line after its label."""


class OpenWorld(Protocol):
    """The winner's world after a run, which is open until it is closed."""

    object: Any
    """The user's own object."""

    def close(self) -> None:
        """Close the world; safe to call twice."""
        ...

    async def aclose(self) -> None:
        """Close the world; safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class WeighingPoint:
    """Record of one weighing, and of the resampling that may have followed."""

    step: int
    """Number of steps of the live particles."""
    values: FloatArray
    """`[N]` return so far plus predicted future return, in reward units; the return alone if it is finished; the
    prediction of the whole return in a run without rewards. NaN where the critic or the particle failed."""
    log_weights: FloatArray
    """`[N]` unnormalised log-weights after weighing, before any resampling."""
    ess: float
    """Effective sample size of retired and live particles together, at this point."""
    ancestors: IntArray | None
    """`[N]` the slot that each slot continues, or None where nothing was resampled."""
    retired: tuple[int, ...] = ()
    """Slots whose finished particle was retired at this point."""
    selected: int | None = None
    """Slot of the particle that was selected to make a commit call or to ask a human, and that all slots continue;
    None: nothing was selected. `ancestors` then holds this slot N times, although nothing was resampled."""
    dropped: Mapping[int, Trajectory] = field(default_factory=dict)
    """Slot -> trajectory of each particle that the resampling left without offspring. Empty for points from before a
    restart: durable points do not store it."""


@dataclass(frozen=True, slots=True)
class Population:
    """The final particles of a run: the live slots first, then the retired particles.

    `M` is their number: N plus the number of retired particles.
    """

    trajectories: tuple[Trajectory, ...]
    """`[M]` the final trajectories; copies of a finished one are the same object."""
    log_weights: FloatArray
    """`[M]` unnormalised: their log-sum-exp is the run's `log_evidence`."""
    log_weights_since: FloatArray
    """`[M]` log-weights accumulated since the last resampling of each particle; live and retired particles are not
    comparable."""
    values: FloatArray
    """`[M]` values at each particle's last weighing, defined as in `WeighingPoint.values`."""
    failed: tuple[bool, ...] = ()
    """`[M]` True for particles that ended with an error of a model, tool or world; their weight is 0."""


@dataclass(frozen=True, slots=True)
class Run:
    """The complete result of a run."""

    best: Trajectory
    """The selected trajectory."""
    best_index: int
    """Its index in `population`, or -1 if it comes from the archive of finished trajectories."""
    population: Population
    history: tuple[WeighingPoint, ...]
    """One record per weighing point, in order."""
    log_evidence: float
    """log Z: its exponential is an unbiased estimate of E_pi[exp(R_T / beta)]. NaN if the run stopped early, or if the
    critic failed on final states of a run without rewards, or if beta was chosen from the particles' own values."""
    usage: Mapping[str, Usage]
    """By role: "policy" and "critic"."""
    seed: int
    """The seed used; drawn at random if none was given."""
    config: Mapping[str, Any]
    """The settings of the run, as plain values; `beta` below is what was made of beta="auto"."""
    select: str
    """The criterion that selected `best`."""
    deployable: bool
    """True if the run never saw a reward, so that the same selection is possible in production."""
    beta: float | None = None
    """Temperature of the target: as given, the critic's own, or chosen; None: nothing told the particles apart."""
    notes: tuple[str, ...] = ()
    """Caveats for a reader of the figures, such as lost particles or a critic that failed."""
    outputs: tuple[Any, ...] = field(default=(), repr=False)
    """`[M]` each particle's final agent state."""
    best_output: Any = field(default=None, repr=False)
    """The final agent state of the selected particle."""
    stopped_by: str | None = None
    """What ended the run before all particles had ended: "budget", "run_timeout", "stop_at", or
    "decided" by an adaptive number of particles; None: nothing."""
    usage_by_fate: Mapping[str, Usage] = field(default_factory=dict)
    """The policy's usage by what became of the particles that spent it: the "winner"'s line, other finished particles
    ("survivors"), particles in the slots of retired ones ("refilled"), lines that resampling removed ("pruned"),
    "failed" particles, particles that the end of the run cut off ("unfinished"), and the past of a run that was
    restored ("restored"). Fates without usage are left out."""
    usage_by_model: Mapping[str, Mapping[str, Usage]] = field(default_factory=dict)
    """{role: {model: usage}}, with models as `provider:name` if the provider is known; the key for prices."""
    commits: tuple[Commit, ...] = ()
    """The calls of commit tools that were made, in order. Every particle lived through all of them."""
    deferred: DeferredCalls = field(default_factory=DeferredCalls)
    """The winner's calls of `Deferred` tools, in order, and what became of them; `commit` makes them."""
    world: OpenWorld | None = field(default=None, repr=False, compare=False)
    """Holds `best_world` open; None if the run has no world, or did not come from `graph.run` or `graph.arun`."""

    @property
    def best_world(self) -> Any:
        """The winner's world, as it was left: the object that `environment=` returned, or a fork of it.

        Worlds of files and databases have `diff()` and `apply()`. The world is open until `close`. None if the run has
        no world, or did not come from `graph.run` or `graph.arun`.
        """
        return None if self.world is None else self.world.object

    def close(self) -> None:
        """Close the winner's world, of a run by `graph.run`; safe to call twice. `with graph.run(...) as run:` does."""
        if self.world is not None:
            self.world.close()

    async def aclose(self) -> None:
        """Close the winner's world; safe to call twice. `async with await graph.arun(...) as run:` does."""
        if self.world is not None:
            await self.world.aclose()

    def __enter__(self) -> Self:
        """Return the run, which is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the winner's world."""
        self.close()

    async def __aenter__(self) -> Self:
        """Return the run, which is closed at the end of the block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the winner's world."""
        await self.aclose()

    def commit(self, tools: CommitTools, *, dry_run: bool = False) -> DeferredCalls:
        """Make the winner's deferred calls, in order, and return their records. A run calls its tools at most once.

        Args:
            tools: the tools, or name -> tool; another tool of the same name may stand in.
            dry_run: print the calls instead of making them.

        Raises:
            CommitError: a call failed; it may have acted, and the later calls were not made.
            ConfigurationError: a tool is missing, or `commit` was called before.
        """
        calls = self.deferred.prepare(tools)
        if dry_run:
            print(*self.deferred, sep="\n")
            return self.deferred
        self.deferred.begin()
        for place, (tool, given) in enumerate(calls):
            with self.deferred.recording(place) as results:
                results.append(tool.invoke(given))
        return self.deferred

    async def acommit(self, tools: CommitTools) -> DeferredCalls:
        """Like `commit`, with async tools."""
        calls = self.deferred.prepare(tools)
        self.deferred.begin()
        for place, (tool, given) in enumerate(calls):
            with self.deferred.recording(place) as results:
                results.append(await tool.ainvoke(given))
        return self.deferred

    def as_plain(self) -> dict[str, Any]:
        """Convert the run to JSON-compatible values, as a served graph streams it.

        Adds `best["return_"]` and `population["returns"]` to the fields. NaN and infinity become None, and objects that
        JSON cannot represent become the name of their type. The world is omitted.
        """
        run: dict[str, Any] = plain({name: value for name, value in fields_of(self).items() if name != "world"})
        run["best"]["return_"] = plain(self.best.return_)
        run["population"]["returns"] = plain([trajectory.return_ for trajectory in self.population.trajectories])
        return run

    def save(self, folder: str | Path) -> Path:
        """Write the run to `run.json` in a folder, from which `amc report FOLDER` makes its page.

        The file has the values of `as_plain` without the agent's states (`outputs`, `best_output`).

        Args:
            folder: created if it does not exist; an earlier run in it is replaced.

        Raises:
            StorageError: the file cannot be written.
        """
        path = Path(folder) / RUN_FILE
        with storage_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(self._without_states().as_plain(), allow_nan=False))
        return path

    def to_html(self, path: str | Path | None = None) -> str:
        """Build the run's page: the genealogy with the text of each step, the answer, the particles, the costs.

        The page is self-contained: it loads nothing from a network, and every text is escaped.

        Args:
            path: a file to write the page to as well; its folder must exist.

        Raises:
            StorageError: the file cannot be written.
        """
        pages = _pages()
        page: str = pages.run_page(pages.RunView.of(self._without_states().as_plain()))
        if path is not None:
            replace_file(Path(path), page)
        return page

    def _repr_html_(self) -> str:
        """Display of a run in a notebook: the summary, and the answer's steps to unfold."""
        pages = _pages()
        fragment: str = pages.notebook_fragment(_rows(self), pages.RunView.of(self._without_states().as_plain()))
        return fragment

    def _without_states(self) -> Run:
        return replace(self, outputs=(), best_output=None)

    def __repr__(self) -> str:
        """Summary in at most 20 lines: best trajectory, particles, resamplings, log Z, usage, cost and notes."""
        return _summary(self)


def _pages() -> ModuleType:
    """Import the pages of runs: the door to `operations`, which the methods do not import otherwise."""
    from amc_agents.operations.page import run_page

    return run_page


def _summary(run: Run) -> str:
    """Format the summary as text."""
    task = run.best.task
    first = f"Run of task {quoted(task.id)}" if task.id else f"Run of {quoted(task.instruction)}"
    first += f": return {run.best.return_:.4g}" if _has_rewards(run) else ""
    return "\n".join([excerpt(first, _WIDTH), *(f"  {name:<10} {excerpt(text, _WIDTH)}" for name, text in _rows(run))])


def _rows(run: Run) -> list[tuple[str, str]]:
    """Describe the best trajectory, the particles, the resamplings, log Z, the settings, the usage and the notes."""
    return [
        ("best", _best(run)),
        ("particles", _particles(run)),
        ("resampled", _resamplings(run)),
        *(("committed", text) for text in _first([str(commit) for commit in run.commits], _MOST_COMMITS, "commits")),
        *(("deferred", text) for text in _first([str(call) for call in run.deferred], _MOST_COMMITS, "calls")),
        ("log Z", "unknown" if math.isnan(run.log_evidence) else f"{run.log_evidence:.4g}"),
        ("settings", _settings(run)),
        *(("usage", line) for line in _usage(run)),
        *(("note", note) for note in _first(run.notes, _MOST_NOTES, "notes")),
    ]


def _best(run: Run) -> str:
    where = "from the archive of finished trajectories" if run.best_index < 0 else f"particle {run.best_index}"
    value = "" if run.best_index < 0 else f", value {run.population.values[run.best_index]:.4g}"
    end = "cut at the step limit" if run.best.truncated else "done" if run.best.done else "not done"
    seen = "no reward was seen: deployable" if run.deployable else "rewards were seen"
    steps = _counted(len(run.best.steps), "step")
    earned = f"return {run.best.return_:.4g}" if _has_rewards(run) else "no rewards"
    return f'{where} by "{run.select}" ({seen}): {earned}{value}, {steps}, {end}'


def _has_rewards(run: Run) -> bool:
    """Whether the run has rewards, seen or hidden; a run of a tree search does not say."""
    return run.config.get("rewards", "world") is not None


def _particles(run: Run) -> str:
    trajectories = run.population.trajectories
    steps = [len(trajectory.steps) for trajectory in trajectories]
    n_retired = sum(len(point.retired) for point in run.history)
    n_particles = len(steps) - n_retired
    more = [f"{n_retired} retired (finished, and their slots given to others)"] if n_retired else []
    more += [f"{sum(run.population.failed)} failed"] if any(run.population.failed) else []
    cut = sum(trajectory.truncated for trajectory in trajectories)
    more += [f"{cut} cut at the step limit"] if cut else []
    returns = [trajectory.return_ for trajectory in trajectories]
    spread = f"{min(returns):.4g} to {max(returns):.4g}, mean {math.fsum(returns) / len(returns):.4g}"
    return f"N = {n_particles}{''.join(f', {count}' for count in more)}; {min(steps)} to {max(steps)} steps" + (
        f"; returns {spread}" if _has_rewards(run) else ""
    )


def _resamplings(run: Run) -> str:
    points = [point for point in run.history if point.ancestors is not None and point.selected is None]
    if not points:
        return f"never, at {_counted(len(run.history), 'weighing point')}"
    shown = [f"step {point.step} (ESS {point.ess:.1f})" for point in points]
    if len(shown) > _MOST_POINTS:
        shown = [*shown[: _MOST_POINTS - 1], "...", shown[-1]]
    return f"{_counted(len(points), 'time')}: {', '.join(shown)}"


def _settings(run: Run) -> str:
    names = ("critic", "resample", "beta", "scheme", "finished", "horizon")
    settings = {name: run.config[name] for name in names if name in run.config}
    if run.beta is not None and run.beta != settings.get("beta"):
        settings["beta"] = f"{run.beta:.4g} ({settings.get('beta')})"
    return ", ".join([*(f"{name} {value}" for name, value in settings.items()), f"seed {run.seed}"])


def _usage(run: Run) -> list[str]:
    lines = []
    for role, usage in run.usage.items():
        tokens = f"{usage.input_tokens:,} tokens in ({usage.cached_tokens:,} cached), {usage.output_tokens:,} out"
        missing = f", {usage.missing:,} without reported usage (their tokens are unknown)" if usage.missing else ""
        missing += f", {usage.estimated:,} cancelled (estimated: tokens reserved for them)" if usage.estimated else ""
        lines.append(f"{role}: {_counted(usage.calls, 'call')}{missing}, {tokens}{_dollars(run, role)}")
    shown = _first(lines, _MOST_ROLES, "roles") or ["none recorded"]
    return [*shown, f"policy by fate: {_fates(run)}"] if len(run.usage_by_fate) > 1 else shown


def _fates(run: Run) -> str:
    return ", ".join(
        f"{fate} {_counted(usage.calls, 'call')} ({usage.tokens:,} tokens)" for fate, usage in run.usage_by_fate.items()
    )


def _dollars(run: Run, role: str) -> str:
    if role not in run.usage_by_model or not run.usage[role].tokens:
        return ""
    spent = cost({role: run.usage_by_model[role]})
    if spent.unpriced and not spent.total:
        return f", no price for {', '.join(name or 'an unnamed model' for name in spent.unpriced)}"
    bound = "at least " if spent.is_lower_bound else "at most " if run.usage[role].estimated else ""
    return f", {bound}${spent.total:.4f}"


def _first(lines: Sequence[str], most: int, plural: str) -> list[str]:
    """The first lines, with the number of omitted lines as the last."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"and {len(lines) - most + 1} further {plural}"]


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
