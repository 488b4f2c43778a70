"""Builds the documentation site into `site/`: stages the pages, generates the reference, and checks every link.

    python docs/generator/build.py

The generator is Zensical; its configuration is `mkdocs.yml`. The build fails if a link or an anchor is broken, or if a
page of docs/ is missing from the navigation.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from api_pages import api_pages
from command_page import command_page
from error_page import error_page
from for_language_models import add_markdown, llms_txt
from navigation import configuration, navigation_pages
from notebook_pages import notebook_page
from rendering import correct_pages
from staging import Staging

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "site"
CONFIGURATION = ROOT / "mkdocs.yml"


def generated_pages() -> dict[str, str]:
    """Return the pages that are made from code, by their path in docs/."""
    pages = {f"reference/{name}": text for name, text in api_pages(ROOT).items()}
    pages |= {"reference/cli.md": command_page(), "reference/errors.md": error_page()}
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        pages[f"notebooks/{notebook.stem}.md"] = notebook_page(notebook, PAGES / "notebooks")
    return pages


def check_navigation(pages: set[str]) -> None:
    """Exit if a generated page or a page of docs/ is missing from the navigation."""
    listed = {page for _, page in navigation_pages(configuration(CONFIGURATION)["nav"])}
    pages |= {path.name for path in (ROOT / "docs").glob("*.md")}
    if missing := sorted(pages - listed):
        sys.exit(f"mkdocs.yml: add a line to nav for {', '.join(missing)}")


def check_offline(site: Path) -> None:
    """Exit if a page loads a script, a style or a picture from the internet."""
    remote = re.compile(r'<(?:script|img)[^>]* src="https?:|<link[^>]* rel="stylesheet"[^>]* href="https?:')
    if pages := [str(page.relative_to(site)) for page in site.rglob("*.html") if remote.search(page.read_text())]:
        sys.exit(f"these pages do not work offline: {', '.join(sorted(pages)[:5])}; look for https:// in their <head>")


def main() -> None:
    """Build the site."""
    for folder in (PAGES, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    generated = generated_pages()
    check_navigation(set(generated))
    pictures = [path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.png")]  # of notebooks
    staging = Staging(ROOT, PAGES, frozenset(f"docs/{page}" for page in (*generated, *pictures)))
    for page, text in generated.items():
        staging.write(page, text, f"docs/{page}")
    staging.stage_docs()
    for name in ("site.css", "iframe-worker.js"):
        shutil.copyfile(Path(__file__).parent / name, PAGES / name)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(CONFIGURATION)]
    if code := subprocess.run(command, env=os.environ | {"NO_COLOR": "1"}, cwd=ROOT).returncode:
        sys.exit(code)
    check_offline(SITE)
    correct_pages(SITE)
    add_markdown(PAGES, SITE)
    (SITE / "llms.txt").write_text(llms_txt(configuration(CONFIGURATION), PAGES))
    print(f"{len(list(SITE.rglob('*.html')))} pages: open {SITE / 'index.html'}")


if __name__ == "__main__":
    main()
