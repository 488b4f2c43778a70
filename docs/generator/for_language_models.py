"""Files for language models, beside the built pages: the Markdown of each page, and `llms.txt`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from navigation import navigation_pages

NO_PROSE = ("#", "!", "*This", "|", "```", "    ", "-", "<")


def add_markdown(pages: Path, site: Path) -> None:
    """Copy the Markdown of each page to a site that the generator has built from `pages`."""
    for page in sorted(pages.rglob("*.md")):
        target = site / page.relative_to(pages)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, target)
        if page.name == "README.md":  # Its page is index.html.
            shutil.copyfile(page, target.with_name("index.md"))


def llms_txt(configuration: dict[str, Any], pages: Path) -> str:
    """Return the list of pages for language models (https://llmstxt.org), in the order of the navigation."""
    text = f"# {configuration['site_name']}\n\n> {configuration['site_description']}\n"
    last = ""
    for section, page in navigation_pages(configuration["nav"]):
        title, purpose = title_and_purpose((pages / page).read_text())
        text += f"\n## {section}\n\n" if section != last else ""
        text += f"- [{title}]({page}): {purpose}\n"
        last = section
    return text


def title_and_purpose(text: str) -> tuple[str, str]:
    """Return a page's title and the first sentence of its prose."""
    title = re.search(r"^# (.*)$", text, re.MULTILINE)
    prose = [part for part in re.split(r"\n\s*\n", text) if part.strip() and not part.startswith(NO_PROSE)]
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(prose[0].split())) if prose else ""
    return title[1] if title else "", re.split(r"(?<=[.!?]) (?=[A-Z`])", plain)[0].removesuffix(":")
