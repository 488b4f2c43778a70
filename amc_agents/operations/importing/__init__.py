"""Import logs of your own agent: from its logs to a dataset on which a critic can be trained.

`import_logs` writes a dataset, as `amc import` does; `read` yields the trajectories in Python.
"""

from __future__ import annotations

from amc_agents.operations.importing.importer import import_logs
from amc_agents.operations.importing.outcomes import Outcomes
from amc_agents.operations.importing.reading import read
from amc_agents.operations.importing.report import ImportReport
from amc_agents.operations.importing.runs import LoggedRun, Origin, Refused
from amc_agents.operations.importing.settings import Reading

__all__ = ["ImportReport", "LoggedRun", "Origin", "Outcomes", "Reading", "Refused", "import_logs", "read"]
