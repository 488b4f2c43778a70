"""The one rich console of the command line. Imported where something is drawn, since rich takes its time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from amc_agents.quoting import printable


class PlainConsole(Console):
    """Prints texts as they are: brackets are no markup, names between colons no emoji, control characters written out.

    Args:
        **settings: as for rich's `Console`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """A string, neutralised before its width is measured."""
        return super().render_str(printable(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Whatever else a text came in, such as a `Text`, is neutralised here."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))
