"""Charts as Vega-Lite specifications, drawn by Vega-Embed (BSD-3-Clause), whose script a page contains.

`vl-convert-python` (extra: report) brings the script in a wheel, so that nothing is loaded from a network, neither here
nor by the page. Colours are the page's CSS variables, which follow its colour scheme.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

from amc_agents.errors import MissingExtra
from amc_agents.operations.page.document import data, inline_script
from amc_agents.operations.page.markup import Child, Html, element

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
