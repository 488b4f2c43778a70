"""Read the charts of a page."""

from __future__ import annotations

import html
import json
import re
from typing import Any


class Charts(list):
    """The titles of the charts, in order."""

    pairs: list[tuple[str, Any]]
    """(title, Vega-Lite specification)"""


def specs(page: str) -> Charts:
    """Return the charts of a page."""
    found = re.findall(
        r'<figcaption>(.*?)<span>.*?<script type="application/json" class="spec">(.*?)</script>', page, re.DOTALL
    )
    charts = Charts(html.unescape(title) for title, _ in found)
    charts.pairs = [(title, json.loads(spec)) for title, (_, spec) in zip(charts, found, strict=True)]
    return charts
