"""Import logs of your own agent: from its logs to a dataset on which a critic can be trained.

`import_logs` writes a dataset, as `amc import` does; `read` yields the trajectories in Python.
"""

from __future__ import annotations

from amc_agents.operations.importing.importer import ImportReport, import_logs
from amc_agents.operations.importing.logged_runs import LoggedRun, Origin, Outcomes, Reading, Refused
from amc_agents.operations.importing.sources import read

__all__ = ["ImportReport", "LoggedRun", "Origin", "Outcomes", "Reading", "Refused", "import_logs", "read"]
