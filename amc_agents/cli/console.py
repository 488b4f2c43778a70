"""The rich console of the command line. Commands import it when they print, because rich is slow to import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from amc_agents.quoting import printable


class PlainConsole(Console):
    """A console that prints text literally: without markup or emoji codes, and with control characters escaped.

    Args:
        **settings: arguments of rich's `Console`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Escape a string before its width is measured."""
        return super().render_str(printable(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape text that comes as another type, such as `Text`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))
