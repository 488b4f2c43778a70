"""`advice.html`: what the logs say, as one page: the table, success against cost, and the code."""

from __future__ import annotations

from collections.abc import Sequence

from amc_agents.operations.advise.advising import Advice, code_of
from amc_agents.operations.advise.recommending import Row
from amc_agents.operations.page.markup import Child, Html, definitions, document, element, figures, section, table

WIDTH, HEIGHT, LEFT, BOTTOM = 720, 420, 64, 48
MEANING = {
    "single": "one run",
    "submitted": "runs are drawn until the agent itself ends one, and no limit cuts it off",
    "race-clock": "k runs start together; the first to finish is the answer, and the others are stopped",
    "race-steps": "the same, by the number of steps",
    "race-tokens": "the same, by the number of tokens",
    "shortest": "the shortest of k finished runs",
    "longest": "the longest of k finished runs",
    "vote": "an answer that most of k finished runs give",
    "critic": "the finished run that a critic values most",
    "early-stop": "runs that the quick critic scores low after some steps are stopped; with k > 1, another is started",
    "known-best": "the best of k: a ceiling, which reads the outcome",
}


def advice_page(advice: Advice, title: str) -> str:
    """Build the page."""
    rows, chosen = advice.rows, advice.recommendation
    names = dict.fromkeys(row.name.partition(":")[0] for row in rows)
    every = element("summary", "Every k"), table(HEADER, [cells(row) for row in rows], "lrrrrrr")
    content = [
        section(
            "Every method, replayed",
            table(HEADER, [cells(row) for row in advice.best_of_each()], "lrrrrrr"),
            element("details", *every),
            note="Each with its best k, by the lower bound. Differences are paired over tasks, with 95% intervals. "
            "Tokens, cost and latency are multiples of those of a single run. Methods with a k are exact over all "
            "subsets of k of a task's runs.",
        ),
        section("Success against tokens", _chart(rows, chosen)),
        section("What the methods do", definitions((name, MEANING[name]) for name in names)),
    ]
    if chosen is not None:
        content.insert(0, section("How to use it", element("pre", advice.code)))
    if advice.saving is not None:
        saving = element("p", f"{saving_line(advice.saving)}."), element("pre", code_of(advice.saving))
        content.insert(0 if chosen is None else 1, section("To spend less", *saving))
    if advice.quick is not None:
        content.append(section("What a quick critic learns", *_critic(advice)))
    content.append(section("What the logs do not say", element("ul", [element("li", note) for note in advice.notes])))
    return document(title, headline(advice), content, kicker=f"amc advise {title}", summary=_summary(advice))


HEADER = ["method", "k", "success", "difference", "tokens", "cost", "latency"]


def headline(advice: Advice) -> str:
    """Return the result as a sentence."""
    row = advice.recommendation
    if row is None:
        return "On these runs, no method is reliably better than a single run"
    return f"{row.name} with k = {row.k} raises success from {row.success - row.difference:.3f} to {row.success:.3f}"


def saving_line(row: Row) -> str:
    """Return what an early stop saves."""
    return (
        f"{row.name} with k = {row.k} takes {row.tokens or 0:.2f} of the tokens, at a success of {row.success:.3f} "
        f"({_with_interval(row)})"
    )


def _with_interval(row: Row) -> str:
    """Return the difference and its interval: `+.124 [+.065, +.183]`."""
    parts = (f"{value:+.3f}" for value in (row.difference, row.low, row.high))
    difference, low, high = (part.replace("0.", ".", 1) if part[1] == "0" else part for part in parts)
    return f"{difference} [{low}, {high}]"


def cells(row: Row) -> list[str]:
    """Return the texts of a row, in the order of `HEADER`."""
    name = row.name if row.deployable else f"({row.name})"
    single = row.name == "single"
    half = f"itself ±{(row.high - row.low) / 2:.3f}"
    difference = half if single else _with_interval(row)
    multiples = ["" if value is None else f"{value:.2f}" for value in (row.tokens, row.cost, row.latency)]
    return [name, str(row.k), f"{row.success:.3f}", difference, *multiples]


def _summary(advice: Advice) -> Child:
    row = advice.recommendation
    counted = f"{advice.runs.n_runs:,} runs of {len(advice.runs.tasks):,} tasks. "
    if row is None:
        return (
            counted + "Every method was replayed, and after the correction for looking at many no bound is above zero."
        )
    price = [f"the tokens of {row.tokens:.2f} runs"] if row.tokens is not None else []
    price += [f"{row.latency:.2f} of the time of one"] if row.latency is not None else []
    paid = f" For {', in '.join(price)}." if price else ""
    return counted + (
        f"{row.name}: {MEANING[row.name.partition(':')[0]]}.{paid} Difference {_with_interval(row)}, cross-fitted: "
        "each task is answered by the method that the other tasks would have chosen."
    )


def _critic(advice: Advice) -> list[Child]:
    quick = advice.quick
    assert quick is not None
    pairs: list[tuple[str, Child]] = []
    if quick.auc is not None:
        pairs.append(
            ("AUC of finished runs of a task", f"{quick.auc.mean:.2f} [{quick.auc.low:.2f}, {quick.auc.high:.2f}]")
        )
    pairs += [(f"AUC after {step} steps", f"{measured.mean:.2f}") for step, measured in quick.by_step.items()]
    heaviest = table(["feature", "weight"], [[name, f"{weight:+.2f}"] for name, weight in quick.explained], "lr")
    refusal = None if quick.refusal is None else element("p", f"It is not worth saving: {quick.refusal}.")
    return [refusal, figures(pairs), heaviest]


def _chart(rows: Sequence[Row], chosen: Row | None) -> Html:
    """Draw success with its interval over the tokens."""
    shown = [row for row in rows if row.tokens is not None]
    most = max(row.tokens or 0 for row in shown)
    single = rows[0].success
    lows = [max(0.0, single + row.low) for row in shown]
    highs = [single + row.high for row in shown]
    bottom, top = min(*lows, single) - 0.02, max(*highs, single) + 0.02

    def x(tokens: float) -> float:
        return LEFT + (WIDTH - LEFT - 16) * tokens / (most * 1.05)

    def y(success: float) -> float:
        return 8 + (HEIGHT - BOTTOM - 8) * (top - success) / (top - bottom)

    marks: list[Html] = []
    for tick in range(1, int(most) + 1):
        marks.append(element("text", str(tick), x=round(x(tick), 1), y=HEIGHT - BOTTOM + 20, class_="label"))
    for step in range(11):
        value = step / 10
        if bottom <= value <= top:
            marks.append(
                element("line", x1=LEFT, x2=WIDTH, y1=round(y(value), 1), y2=round(y(value), 1), class_="point")
            )
            marks.append(element("text", f"{value:.1f}", x=LEFT - 34, y=round(y(value) + 4, 1), class_="label"))
    for row in shown:
        at = round(x(row.tokens or 0), 1)
        is_chosen = chosen is not None and (row.name, row.k) == (chosen.name, chosen.k)
        style = "var(--s2)" if is_chosen else "var(--s1)" if row.deployable else "var(--muted)"
        about = f"{row.name}, k = {row.k}: {row.success:.3f}"
        low, high = round(y(max(0.0, single + row.low)), 1), round(y(single + row.high), 1)
        marks.append(element("line", x1=at, x2=at, y1=low, y2=high, stroke=style, stroke_width=1.2, opacity=0.45))
        point = element("circle", element("title", about), cx=at, cy=round(y(row.success), 1), r=5, fill=style)
        marks.append(point)
    labelled = _labelled(shown, chosen)
    for row in labelled:
        marks.append(
            element(
                "text",
                f"{row.name} {row.k}",
                x=round(x(row.tokens or 0) + 9, 1),
                y=round(y(row.success) + 4, 1),
                class_="result",
            )
        )
    marks.append(element("text", "tokens, multiples of a single run", x=WIDTH / 2 - 90, y=HEIGHT - 6, class_="label"))
    svg = element(
        "svg", *marks, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label="success against tokens, by method",
    )  # fmt: skip
    return element("figure", element("div", svg, class_="plot tree"), class_="chart")


def _labelled(rows: Sequence[Row], chosen: Row | None) -> list[Row]:
    """Name the single run, the ceiling, and what is recommended; without that, the best of each method."""
    ends = [row for row in rows if row.name == "single"]
    ceiling = [row for row in rows if not row.deployable]
    best = [row for row in rows if chosen is not None and (row.name, row.k) == (chosen.name, chosen.k)]
    return [*ends, *ceiling[-1:], *best]
