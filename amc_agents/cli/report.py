"""`amc report`: a page of results that can be looked at, printed and sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from amc_agents.cli.json_output import AsJson, console_beside, print_json


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder of amc bench, demo, tune, import, collect, shadow or canary, or of a run that run.save wrote."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The page. Default: report.html in the folder.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a self-contained HTML page of results: tables, charts, the genealogy of a run, costs and failures."""
    from amc_agents.files import replace_file
    from amc_agents.operations.report import report_page

    page, path = report_page(folder), out or folder / "report.html"
    replace_file(path, page)
    n_bytes = len(page.encode())
    console_beside(as_json).print(f"Written: {path} ({n_bytes / 1e6:.1f} MB)", soft_wrap=True)
    if as_json:
        print_json({"page": path, "bytes": n_bytes})
    if open_:
        typer.launch(str(path.resolve()))
