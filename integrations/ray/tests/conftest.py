from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from amc_agents.bench import executors
from tests.bench.tally import Tally


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    """The executor is found without an installation of this package."""
    monkeypatch.setattr(executors, "entry_points", lambda group: [EntryPoint("ray", "amc_agents_ray", group)])


@pytest.fixture
def tally(tmp_path):
    return Tally(str(tmp_path / "log"))
