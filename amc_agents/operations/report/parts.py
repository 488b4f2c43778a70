"""Parts of several pages: charts as Vega-Lite specifications of plain values, counts of notes, and large numbers.

Charts are drawn by Vega-Embed (BSD-3-Clause), whose script a page contains. `vl-convert-python` (extra: report) brings
the script in a wheel, so that nothing is loaded from a network, neither here nor by the page. Colours are the page's
CSS variables, which follow its colour scheme.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from amc_agents.bench.records import RunResult
from amc_agents.critics.reliability import Bin
from amc_agents.errors import MissingExtra
from amc_agents.operations.page.markup import Child, Html, data, details, element, inline_script, join, table

Spec = Mapping[str, Any]
"""A Vega-Lite specification."""
SERIES = [f"var(--s{number})" for number in range(1, 7)]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross"]
"""Fewer shapes than colours, so that 30 series differ."""


@lru_cache(maxsize=1)
def library() -> str:
    """Return the JavaScript that draws charts, about 900 kB; it defines `amcEmbed`.

    Raises:
        MissingExtra: vl-convert-python is not installed.
    """
    try:
        bundle = import_module("vl_convert").javascript_bundle
    except ModuleNotFoundError as error:
        raise MissingExtra("vl-convert-python", "report") from error
    return inline_script(bundle("window.amcEmbed = vegaEmbed;"))


def chart(title: str, subtitle: Child, spec: Spec, *, description: str) -> Html:
    """Build a chart with its caption.

    Args:
        title: what the chart shows.
        subtitle: how to read it.
        spec: the chart; its width follows the page.
        description: the content in words, for those who cannot see it.
    """
    sized = {"width": "container", "height": 260, "autosize": {"type": "fit-x", "contains": "padding"}}
    return element(
        "figure",
        element("figcaption", title, element("span", subtitle)),
        element("div", class_="plot", role="img", aria_label=description),
        data({**sized, **spec, "config": _CONFIG}, "spec"),
        class_="chart",
    )


def charts(*those: Html | None) -> Html:
    """Place charts side by side, as far as the width allows."""
    return element("div", *those, class_="charts")


_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif'
_CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": _FONT,
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--muted)", "titleColor": "var(--muted)", "labelFontSize": 13, "titleFontSize": 13,
        "titleFontWeight": "normal", "gridColor": "var(--line)", "domain": False, "ticks": False, "labelPadding": 7,
        "titlePadding": 10, "tickCount": 5, "labelLimit": 150,
    },
    "legend": {
        "labelColor": "var(--ink)", "titleColor": "var(--muted)", "labelFontSize": 13, "titleFontSize": 13,
        "symbolSize": 90, "orient": "bottom", "direction": "horizontal", "columns": 2, "title": None,
        "labelLimit": 200, "offset": 14, "symbolStrokeWidth": 2,
    },
    "range": {"category": SERIES, "symbol": SHAPES},
    "rule": {"color": "var(--ink)"},
    "text": {"color": "var(--ink)"},
    "point": {"filled": True, "opacity": 1},
}  # fmt: skip


class Dot(NamedTuple):
    """A mean with its interval."""

    name: str
    mean: float
    low: float
    high: float
    text: str
    """The mean and its interval, as a tooltip shows them."""
    cost: float | None = None


def dots(points: Sequence[Dot], axis: str) -> Spec:
    """Draw a row with an interval for each name, in their order."""
    values = [{"method": dot.name, "score": dot.text, **dot._asdict()} for dot in points]
    y = {"field": "method", "type": "nominal", "sort": None, "axis": {"title": None, "labelColor": "var(--ink)"}}
    tooltip = [{"field": "method"}, {"field": "score"}]
    return {
        "data": {"values": values},
        "height": 34 * len(points),
        "encoding": {"y": y, "tooltip": tooltip},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 2.5, "color": SERIES[0]},
                "encoding": {"x": _quantity("low", axis), "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "size": 110, "color": SERIES[0]},
                "encoding": {"x": _quantity("mean", axis)},
            },
        ],
    }


def against_cost(points: Sequence[Dot], names: Sequence[str], axis: str, cost_axis: str) -> Spec:
    """Draw scores with intervals over the cost; the cost is logarithmic where it spans more than a factor of 10.

    Args:
        points: the scores.
        names: all series of the page, so that a series looks alike in every chart.
        axis: title of the vertical axis.
        cost_axis: title of the horizontal axis.
    """
    costs = [dot.cost for dot in points if dot.cost]
    wide = len(costs) == len(points) and max(costs) > 10 * min(costs)
    scale: dict[str, Any] = {"type": "log", "nice": False, "padding": 16} if wide else {"padding": 16, "zero": not wide}
    x = {"field": "cost", "type": "quantitative", "title": cost_axis, "scale": scale,
         "axis": {"grid": False, "format": "~s"}}  # fmt: skip
    colour, shape = _looks(names, {dot.name for dot in points})
    tooltip = [{"field": "method"}, {"field": "score"}, {"field": "cost", "format": ",.0f", "title": cost_axis}]
    return {
        "data": {"values": [{"method": dot.name, "score": dot.text, **dot._asdict()} for dot in points]},
        "encoding": {"x": x, "color": colour, "tooltip": tooltip},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"y": _quantity("low", axis, zero=False), "y2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "size": 130},
                "encoding": {"y": _quantity("mean", axis, zero=False), "shape": shape},
            },
        ],
    }


def calibration(rows: Sequence[dict[str, Any]], names: Sequence[str], outcome: str = "mean outcome") -> Spec:
    """Draw observed against predicted outcomes, with the diagonal.

    Args:
        rows: those of `bin_rows`, of all series.
        names: all series of the page.
        outcome: title of the vertical axis.
    """
    ends = [row[key] for row in rows for key in ("predicted", "low", "high")]
    span = [min([0.0, *ends]), max([1.0, *ends])]
    colour, shape = _looks(names, {row["method"] for row in rows})
    x = {"type": "quantitative", "title": "value", "scale": {"domain": span}}
    y = {"type": "quantitative", "title": outcome, "scale": {"domain": span}}
    diagonal = {
        "data": {"values": [{"p": end} for end in span]},
        "mark": {"type": "line", "strokeDash": [4, 4], "color": "var(--muted)", "strokeWidth": 1.5},
        "encoding": {"x": {**x, "field": "p"}, "y": {**y, "field": "p"}},
    }
    tooltip = [
        {"field": "method"},
        *({"field": name, "format": ".3f"} for name in ("predicted", "observed")),
        {"field": "samples"},
    ]
    bins = {
        "data": {"values": list(rows)},
        "encoding": {"x": {**x, "field": "predicted"}, "color": colour, "tooltip": tooltip},
        "layer": [
            {"mark": {"type": "rule", "strokeWidth": 2},
             "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}}},
            {"mark": {"type": "point", "size": 90}, "encoding": {"y": {**y, "field": "observed"}, "shape": shape}},
        ],
    }  # fmt: skip
    return {"layer": [diagonal, bins], "height": 300}


def curves(
    rows: Sequence[dict[str, Any]],
    names: Sequence[str],
    x: str,
    y: str,
    *,
    domain: tuple[float, float] | None = None,
    level: float | None = None,
    marks: bool = True,
) -> Spec:
    """Draw a line with its band for each series.

    Args:
        rows: `x`, `mean`, `low`, `high`, `method` of each point; x is a whole number.
        names: all series of the page.
        x: title of the horizontal axis.
        y: title of the vertical axis.
        domain: the values that y can take; bands are cut there. None: those of the rows.
        level: a value of y to compare with, such as chance.
        marks: mark each point.
    """
    colour, shape = _looks(names, {row["method"] for row in rows})
    at = {"field": "x", "type": "quantitative", "title": x, "axis": {"grid": False, "tickMinStep": 1},
          "scale": {"nice": False}}  # fmt: skip
    tooltip = [{"field": "method"}, {"field": "x", "title": x}, *_TOOLTIP]
    scale = {"zero": False} if domain is None else {"domain": list(domain)}

    def height(field: str) -> dict[str, Any]:
        return {"field": field, "type": "quantitative", "title": y, "scale": scale}

    return {
        "data": {"values": list(rows)},
        "height": 300,
        "encoding": {"x": at, "color": colour},
        "layer": [
            {
                "mark": {"type": "area", "opacity": 0.14, "clip": True},
                "encoding": {"y": height("low"), "y2": {"field": "high"}},
            },
            {"mark": {"type": "line", "strokeWidth": 2.5}, "encoding": {"y": height("mean")}},
            {
                "mark": {"type": "point", "size": 60, "opacity": float(marks)},
                "encoding": {"y": height("mean"), "shape": shape, "tooltip": tooltip},
            },
            *([] if level is None else [_rule(level)]),
        ],
    }


def groups(rows: Sequence[dict[str, Any]], names: Sequence[str], x: str, y: str) -> Spec:
    """Draw the means of several series side by side at each of a few values of x; arguments as in `curves`."""
    colour, shape = _looks(names, {row["method"] for row in rows})
    at = {"field": "x", "type": "ordinal", "title": x, "axis": {"labelAngle": 0}}
    beside = {"field": "method", "type": "nominal", "scale": {"domain": colour["scale"]["domain"]}}
    return {
        "data": {"values": list(rows)},
        "height": 300,
        "encoding": {"x": at, "xOffset": beside, "color": colour,
                     "tooltip": [{"field": "method"}, {"field": "x", "title": x}, *_TOOLTIP]},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"y": _quantity("low", y), "y2": {"field": "high"}},
            },
            {"mark": {"type": "point", "size": 90}, "encoding": {"y": _quantity("mean", y), "shape": shape}},
        ],
    }  # fmt: skip


def bars(rows: Sequence[dict[str, Any]], x: str, y: str) -> Spec:
    """Draw a bar for each bin of a histogram: `low`, `high` and `count` of each."""
    tooltip = [{"field": "low", "title": "from", "format": "~g"}, {"field": "high", "title": "to", "format": "~g"},
               {"field": "count", "format": ","}]  # fmt: skip
    return {
        "data": {"values": list(rows)},
        "height": 220,
        "mark": {"type": "bar", "color": SERIES[0], "binSpacing": 2},
        "encoding": {
            "x": {"field": "low", "type": "quantitative", "title": x, "bin": {"binned": True}, "axis": {"grid": False}},
            "x2": {"field": "high"},
            "y": {"field": "count", "type": "quantitative", "title": y},
            "tooltip": tooltip,
        },
    }


def bin_rows(bins: Iterable[Bin], name: str) -> list[dict[str, Any]]:
    """Return the rows of a calibration chart, with 95% intervals from the standard errors clustered by task or key."""
    rows = []
    for each in bins:
        # A bin of a single task has no standard error.
        half = 0.0 if math.isnan(each.standard_error) else 1.96 * each.standard_error
        rows.append({
            "method": name, "predicted": round(each.predicted, 5), "observed": round(each.observed, 5),
            "low": round(each.observed - half, 5), "high": round(each.observed + half, 5), "samples": each.n,
        })  # fmt: skip
    return rows


def _rule(level: float) -> dict[str, Any]:
    return {
        "mark": {"type": "rule", "strokeDash": [4, 4], "color": "var(--muted)", "strokeWidth": 1.5},
        "encoding": {
            "x": {"value": 0},
            "x2": {"value": "width"},
            "color": {"value": "var(--muted)"},
            "y": {"datum": level, "type": "quantitative"},
        },
    }


_TOOLTIP = [{"field": name, "format": ".3f"} for name in ("mean", "low", "high")]


def _quantity(field: str, title: str, *, zero: bool = True) -> dict[str, Any]:
    return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": zero, "nice": True}}


def _looks(names: Sequence[str], shown: set[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the encodings of colour and shape of the series that a chart shows."""

    def encoding(looks: Sequence[str]) -> dict[str, Any]:
        scale = {
            "domain": [name for name in names if name in shown],
            "range": [looks[place % len(looks)] for place, name in enumerate(names) if name in shown],
        }
        legend = {"symbolOpacity": 1} if len(shown) > 1 else None
        return {"field": "method", "type": "nominal", "scale": scale, "sort": None, "legend": legend}

    return encoding(SERIES), encoding(SHAPES)


def short(count: float) -> str:
    """Format a large count.

    >>> short(12_345_678), short(45_000), short(900)
    ('12.3 M', '45 k', '900')
    """
    if count >= 1e6:
        return f"{count / 1e6:.1f} M"
    return f"{count / 1e3:.0f} k" if count >= 1e4 else f"{count:,.0f}"


_SHOWN, _MOST = 6, 200


def notes_table(records: Sequence[RunResult], labels: Mapping[str, str]) -> Html:
    """Count each note by method.

    Args:
        records: the runs.
        labels: method -> its name in tables.
    """
    counts = Counter((record.method, note) for record in records for note in record.notes)
    if not counts:
        return element("p", "No run failed, and no run has a note.")
    rows: list[list[Child]] = [
        [labels.get(method, method), f"{n:,}", note] for (method, note), n in counts.most_common(_MOST)
    ]
    left_out = len(counts) - len(rows)
    header = ["method", "runs", "note"]
    first = table(header, rows[:_SHOWN], "lrl")
    if len(rows) <= _SHOWN:
        return first
    rest = table(header, rows[_SHOWN:], "lrl", caption=f"and {left_out} rarer notes" if left_out else None)
    return join([first, details(f"{len(rows) - _SHOWN} rarer notes", rest)])
