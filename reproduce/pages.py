"""The parts of result pages that scripts write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from amc_agents.errors import ConfigurationError
from amc_agents.files import replace_file


def write_parts(page: Path, parts: Mapping[str, str]) -> None:
    """Replace the parts of a page between the lines `<!-- name -->` and `<!-- /name -->`.

    Args:
        page: the file.
        parts: name -> Markdown.

    Raises:
        ConfigurationError: the page does not have a name's two lines once each, in this order.
    """
    content = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, *rest = re.split(f"^{re.escape(begin)}|^{re.escape(end)}", content, flags=re.MULTILINE)
        if len(rest) != 2 or content.index(begin) > content.index(end):
            raise ConfigurationError(f"{page} needs the lines {begin.strip()} and {end}, once each, in this order")
        content = f"{before}{begin}{part}\n{end}{rest[1]}"
    replace_file(page, content)
