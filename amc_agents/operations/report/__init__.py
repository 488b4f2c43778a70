"""Pages of result folders (`amc report`): recognise a folder of results, and build its page.

Every figure comes from the functions that compute the tables of the command line. The page itself, and the page of one
run, are in `amc_agents.operations.page`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from amc_agents.bench.results_folder import RECORDS, SETTINGS
from amc_agents.errors import AmcError, CheckpointError, ConfigurationError
from amc_agents.files import read_json_object
from amc_agents.operations.page.run_page import run_page
from amc_agents.operations.page.run_view import read_run
from amc_agents.operations.report.bench_page import RESULTS, bench_page
from amc_agents.operations.report.dataset_page import dataset_page
from amc_agents.operations.report.parts import library
from amc_agents.operations.report.rollout_page import rollout_page
from amc_agents.operations.report.tune_page import TUNING, tune_page
from amc_agents.operations.rollout.call_records import FILE as ROLLOUT
from amc_agents.quoting import excerpt
from amc_agents.run import RUN_FILE
from amc_agents.training.dataset import shards


class Kind(NamedTuple):
    """A kind of folder."""

    written_by: str
    """What writes such a folder."""
    contains: str
    """The files by which it is recognised."""
    matches: Callable[[Path], bool]
    page: Callable[[Path], str]
    """Builds the page of a folder."""


def _is_bench(folder: Path) -> bool:
    if (folder / RESULTS).exists():
        return True
    if not (folder / SETTINGS).exists() or not any(folder.glob(RECORDS)):
        return False
    # `amc explore` stores its trials in such a folder too.
    stored = read_json_object(folder / SETTINGS, remedy="restore the file, or run the comparison again")
    return "n_episodes" not in stored.get("settings", {})


KINDS = (
    Kind("amc tune", TUNING, lambda folder: (folder / TUNING).exists(), lambda folder: tune_page(folder, library())),
    Kind("amc bench or amc demo", f"{RESULTS} or {RECORDS}", _is_bench, lambda folder: bench_page(folder, library())),
    Kind(
        "amc import or amc collect",
        "trajectories-*.parquet",
        lambda folder: bool(shards(folder)),
        lambda folder: dataset_page(folder, library()),
    ),
    Kind(
        "shadow or canary",
        ROLLOUT,
        lambda folder: (folder / ROLLOUT).exists(),
        lambda folder: rollout_page(folder, library()),
    ),
    # Last, since a comparison stores a run as well.
    Kind(
        "run.save",
        RUN_FILE,
        lambda folder: (folder / RUN_FILE).exists(),
        lambda folder: run_page(read_run(folder / RUN_FILE)),
    ),
)
"""The kinds of folders, in the order in which they are tried."""


def report_page(folder: str | Path) -> str:
    """Build the page of a folder of results.

    Args:
        folder: the folder of a run, a comparison, a tuning or a dataset.

    Raises:
        ConfigurationError: the folder holds something else.
        CheckpointError: a file of the folder cannot be read.
        MissingExtra: a library that the page needs is not installed.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ConfigurationError(
            f"{path} is not a folder: give the folder of a run, a comparison, a tuning or a dataset"
        )
    kind = next((kind for kind in KINDS if kind.matches(path)), None)
    if kind is None:
        looked_for = "; ".join(f"{kind.contains} ({kind.written_by})" for kind in KINDS)
        raise ConfigurationError(f"{path} holds no results: expected {looked_for}")
    try:
        return kind.page(path)
    except AmcError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} holds values that {kind.written_by} does not write ({type(error).__name__}: "
            f"{excerpt(str(error), 100)}): a file was damaged or edited; restore it"
        ) from error
