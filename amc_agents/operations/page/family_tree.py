"""The family tree of a run's particles as SVG, with the text of each step for the page's script."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amc_agents.branches import Branch, branches, has_one_round, texts_of, unrelated
from amc_agents.operations.page.markup import Html, data, element, join, number_text, shortened
from amc_agents.operations.page.run_view import RunView
from amc_agents.quoting import masked, printable

_CLASSES = 6
"""Number of colours of values."""
_TEXT_SIZES = (20_000, 4_000, 1_000, 300, 100)
"""Characters of a text that are kept; the largest number with which all texts fit `_BUDGET`."""
_BUDGET = 2_000_000
_LEFT, _TOP = 26, 34
_LETTER = 8
"""Width of a letter of a label, rather too wide."""


@dataclass(frozen=True)
class _Score:
    """What is known about a particle at a weighing point."""

    value: float
    log_weight: float
    ess: float


class Tree:
    """The lines of a run and what belongs to each.

    Args:
        run: the run.
    """

    def __init__(self, run: RunView) -> None:
        self.run = run
        lengths = [len(trajectory["steps"]) for trajectory in run.trajectories]
        self.related = has_one_round(
            [point.step for point in run.history], run.n_retired, _n_slots(run), len(run.trajectories)
        )
        if self.related:
            self.branches = branches(run.history, lengths, run.returns, run.values)
            texts = texts_of(self.branches, run.history, run.trajectories, [point.dropped for point in run.history])
            self.parents = _parents(self.branches)
        else:
            self.branches = unrelated(lengths, run.returns, run.values)
            texts, self.parents = list(run.trajectories), [None] * len(lengths)
        self.steps = [_own_steps(branch, text) for branch, text in zip(self.branches, texts, strict=True)]
        self.scores = _scores(self)
        self.winners = self._winning_line()

    def _winning_line(self) -> set[int]:
        at = next((i for i, branch in enumerate(self.branches) if branch.trajectory == self.run.best_index), None)
        line = set()
        while at is not None:
            line.add(at)
            at = self.parents[at]
        return line

    def end(self, number: int) -> int:
        """Return the last step of a branch that has a text, or its start."""
        return int(self.branches[number].start) + len(self.steps[number])

    def has_ended(self, number: int) -> bool:
        """Whether the particle of a branch came to its end."""
        at = self.branches[number].trajectory
        return at is not None and bool(self.run.trajectories[at]["done"])


def genealogy(run: RunView) -> Html:
    """Draw the family tree, with a panel that shows the step of the chosen node."""
    tree = Tree(run)
    picture = _Picture(tree)
    frame = element("div", picture.svg(), class_="scroll tree", tabindex=-1)
    panel = element("div", class_="panel", aria_live="polite")
    note = None
    if not tree.related:
        note = element(
            "p", "The particles belong to several rounds, or some were cleared: final trajectories only.", class_="note"
        )
    return element("div", note, _legend(tree), frame, panel, data(_texts(tree), "texts"), class_="genealogy")


class _Picture:
    """Geometry and marks of the tree."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.n_rows = 1 + max((branch.row for branch in tree.branches), default=0)
        self.last = max([1, *(math.ceil(branch.end) for branch in tree.branches)])
        self.dx = min(64.0, max(30.0, 940.0 / self.last))
        self.dy = 26.0 if self.n_rows <= 24 else 20.0
        known = [score.value for score in tree.scores.values() if math.isfinite(score.value)]
        self.low, self.high = (min(known), max(known)) if known else (0.0, 1.0)

    def svg(self) -> Html:
        widest = max((len(self._result(branch)) for branch in self.tree.branches), default=0)
        width = _LEFT + self.dx * self.last + 20 + _LETTER * widest
        height = _TOP + self.dy * self.n_rows + 34
        order = sorted(range(len(self.tree.branches)), key=lambda number: number in self.tree.winners)
        marks = [mark for number in order for mark in self._nodes(number)]
        return element(
            "svg",
            *self._points(height),
            *(self._line(number) for number in order),
            self._root(),
            *marks,
            *self._axis(height),
            width=f"{width:.0f}", height=f"{height:.0f}", viewBox=f"0 0 {width:.0f} {height:.0f}",
            role="group", aria_label="Family tree of the particles. Arrow keys move between steps and particles.",
        )  # fmt: skip

    def _x(self, step: float) -> float:
        return _LEFT + self.dx * step

    def _y(self, row: float) -> float:
        return _TOP + self.dy * (row + 0.5)

    def _points(self, height: float) -> Iterator[Html]:
        """Mark the resampling points, and label those that leave room for it."""
        free = 0.0
        for point in self.tree.run.history if self.tree.related else ():
            if point.ancestors is None:
                continue
            x = self._x(point.step)
            gone = len(point.values) - len(set(point.ancestors)) - len(point.retired)
            text = f"{max(gone, 0)} dropped"
            half = 3.5 * len(text)
            yield element("line", x1=x, x2=x, y1=_TOP - 6, y2=height - 30, class_="point")
            if x - half >= free:
                yield element("text", text, x=x, y=_TOP - 14, class_="label", text_anchor="middle")
                free = x + half

    def _line(self, number: int) -> Html:
        branch = self.tree.branches[number]
        middle = (self.n_rows - 1) / 2
        x0, x1 = self._x(branch.start), self._x(max(branch.end, branch.start + 0.5))
        y0 = self._y(middle if branch.from_row is None else branch.from_row)
        y1 = self._y(branch.row)
        turn = min(x0 + 0.9 * self.dx, x1)
        bend = f"M{x0:.1f} {y0:.1f}C{(x0 + turn) / 2:.1f} {y0:.1f} {(x0 + turn) / 2:.1f} {y1:.1f} {turn:.1f} {y1:.1f}"
        kind = "winner" if number in self.tree.winners else branch.ending
        return element("path", d=f"{bend}H{x1:.1f}", class_=f"line {kind}")

    def _root(self) -> Html:
        y = self._y((self.n_rows - 1) / 2)
        return self._node(-1, 0, _LEFT, y, "root", "The task")

    def _nodes(self, number: int) -> Iterator[Html]:
        tree, branch = self.tree, self.tree.branches[number]
        y, end = self._y(branch.row), tree.end(number)
        for step in range(int(branch.start) + 1, end + 1):
            score = tree.scores.get((number, step))
            kind = "step" if score is None else f"v{self._class(score.value)}"
            kind += " winner" if number in tree.winners else ""
            known = "" if score is None else f", value {number_text(score.value)}"
            yield self._node(number, step, self._x(step), y, kind, f"particle {branch.slot}, step {step}{known}")
        yield from self._ending(number, self._x(max(end, branch.start + 0.5)), y)

    def _ending(self, number: int, x: float, y: float) -> Iterator[Html]:
        tree, branch = self.tree, self.tree.branches[number]
        if branch.ending == "dropped":
            yield element("text", "\u00d7", x=x + 11, y=y + 5, class_="cross")
        if branch.trajectory is not None:
            kind = "result chosen" if branch.trajectory == tree.run.best_index else "result"
            yield element("text", self._result(branch), x=x + 12, y=y + 4, class_=kind)

    def _result(self, branch: Branch) -> str:
        """Return what stands at the end of a line; empty if it was continued or dropped."""
        run, number = self.tree.run, branch.trajectory
        if number is None:
            return ""
        ends = run.returns if run.has_rewards else run.values
        result = "failed" if run.failed[number] else number_text(ends[number])
        return f"{result} · answer" if number == run.best_index else result

    def _node(self, number: int, step: int, x: float, y: float, kind: str, label: str) -> Html:
        radius = 4 if kind.startswith("step") else 6.5
        place = {"cx": f"{x:.1f}", "cy": f"{y:.1f}"}
        return element(
            "g",
            element("circle", r=12, class_="target", **place),
            element("circle", r=radius, class_="dot", **place),
            class_=f"node {kind}", data_b=number, data_s=step, role="button", tabindex=-1, aria_label=label,
        )  # fmt: skip

    def _axis(self, height: float) -> Iterator[Html]:
        every = max(1, math.ceil(28 / self.dx), self.last // 24)
        for step in range(0, self.last + 1, every):
            yield element(
                "text", "task" if step == 0 else step, x=self._x(step), y=height - 12, class_="label",
                text_anchor="middle",
            )  # fmt: skip

    def _class(self, value: float) -> str:
        if not math.isfinite(value):
            return "unknown"
        if self.high <= self.low:
            return str(_CLASSES - 1)
        return str(min(_CLASSES - 1, int(_CLASSES * (value - self.low) / (self.high - self.low))))


def _legend(tree: Tree) -> Html:
    picture = _Picture(tree)
    scale = [element("span", class_=f"swatch v{number}") for number in range(_CLASSES)]
    return element(
        "p",
        element("span", "value ", number_text(picture.low), " ", join(scale), " ", number_text(picture.high)),
        element("span", element("span", class_="swatch step"), " not scored"),
        element("span", element("span", class_="swatch winner"), " line of the answer"),
        element("span", "\u00d7 dropped"),
        class_="legend",
    )


def _texts(tree: Tree) -> dict[str, Any]:
    """Return what the script shows: for each branch its particle, its fate and its steps."""
    longest = _longest(tree)
    task = tree.run.best["task"]
    return {
        "task": _kept(task["instruction"], longest),
        "branches": [
            {
                "particle": branch.slot,
                "parent": tree.parents[number],
                "start": int(branch.start),
                "fate": _fate(tree, number),
                "steps": [
                    _step(step, tree.scores.get((number, int(branch.start) + place)), longest)
                    for place, step in enumerate(tree.steps[number], start=1)
                ],
            }
            for number, branch in enumerate(tree.branches)
        ],
    }


def _step(step: Mapping[str, Any], score: _Score | None, longest: int) -> dict[str, Any]:
    shown: dict[str, Any] = {
        name: _kept(step.get(name, ""), longest) for name in ("thought", "action", "observation") if step.get(name)
    }
    if step.get("reward"):
        shown["reward"] = number_text(step["reward"])
    if score is not None:
        shown["value"] = number_text(score.value)
        shown["weight"] = number_text(score.log_weight)
        shown["ess"] = number_text(score.ess)
    return shown


def _fate(tree: Tree, number: int) -> str:
    branch, run = tree.branches[number], tree.run
    if branch.trajectory is not None:
        if run.failed[branch.trajectory]:
            return "ended with an error"
        ended = "cut at the step limit" if run.trajectories[branch.trajectory].get("truncated") else "ended"
        chosen = "; the answer" if branch.trajectory == run.best_index else ""
        return_ = f", return {number_text(run.returns[branch.trajectory])}" if run.has_rewards else ""
        return f"{ended}{return_}{chosen}"
    if branch.ending == "dropped":
        lost = "" if tree.steps[number] else "; its text was not kept"
        return f"dropped at step {branch.end:.0f}{lost}"
    offspring = sum(parent == number for parent in tree.parents)
    return f"continued by {offspring} particle{'' if offspring == 1 else 's'} at step {branch.end:.0f}"


def _n_slots(run: RunView) -> int:
    if not run.history:
        return len(run.trajectories)
    last = run.history[-1]
    return len(last.values) if last.ancestors is None else len(last.ancestors)


def _parents(laid_out: Sequence[Branch]) -> list[int | None]:
    """Return, for each branch, the index of the branch that it continues."""
    before: dict[int, int] = {}
    current: dict[int, int] = {}
    point = laid_out[0].point if laid_out else None
    parents: list[int | None] = []
    for number, branch in enumerate(laid_out):
        if branch.point != point:
            before, current, point = current, {}, branch.point
        parents.append(None if branch.from_row is None else before[branch.from_row])
        current[branch.row] = number
    return parents


def _own_steps(branch: Branch, trajectory: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    steps = [] if trajectory is None else trajectory["steps"]
    return list(steps[int(branch.start) : int(branch.end)])


def _scores(tree: Tree) -> dict[tuple[int, int], _Score]:
    """Map (branch, step) to what the critic said there."""
    if not tree.related:
        return {
            (number, len(steps)): _Score(tree.run.values[number], tree.run.log_weights[number], math.nan)
            for number, steps in enumerate(tree.steps)
        }
    of_slot = {(branch.point, branch.slot): number for number, branch in enumerate(tree.branches)}
    segment: int | None = None
    scores: dict[tuple[int, int], _Score] = {}
    for place in reversed(range(len(tree.run.history))):
        point = tree.run.history[place]
        segment = place if point.ancestors is not None else segment
        for slot, (value, log_weight) in enumerate(zip(point.values, point.log_weights, strict=True)):
            branch = of_slot[segment, slot]
            # A last answer is a step, too, but no pause, by which the weighing points are numbered.
            last = place == len(tree.run.history) - 1 and tree.has_ended(branch)
            step = tree.end(branch) if last else min(point.step, tree.end(branch))
            # Of two points at which a finished particle stood still, the last counts.
            if step > tree.branches[branch].start:
                scores.setdefault((branch, step), _Score(value, log_weight, point.ess))
    return scores


def _longest(tree: Tree) -> int:
    """Return the number of characters to keep of each text."""
    sizes = [
        len(step.get(name) or "")
        for steps in tree.steps
        for step in steps
        for name in ("thought", "action", "observation")
    ]
    fitting = (limit for limit in _TEXT_SIZES if sum(min(size, limit) for size in sizes) <= _BUDGET)
    return next(fitting, _TEXT_SIZES[-1])


def _kept(text: str, longest: int) -> str:
    return shortened(printable(masked(text)), longest)
