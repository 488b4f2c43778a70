"""Import logs of your own agent: from its logs to a dataset on which a critic can be trained.

`import_logs` writes a dataset, as `amc import` does; `read` yields the trajectories in Python.
"""

from __future__ import annotations

from amc_agents.importing.importer import import_logs
from amc_agents.importing.outcomes import Outcomes
from amc_agents.importing.reading import read
from amc_agents.importing.report import ImportReport
from amc_agents.importing.runs import LoggedRun, Origin, Refused
from amc_agents.importing.settings import Reading

__all__ = ["ImportReport", "LoggedRun", "Origin", "Outcomes", "Reading", "Refused", "import_logs", "read"]
