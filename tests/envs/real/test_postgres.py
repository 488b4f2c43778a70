"""PostgresFork without a server; tests/service/test_postgres_fork.py runs it against PostgreSQL."""

from __future__ import annotations

import subprocess
import sys

import pytest

from amc_agents.envs.real.postgres import PostgresFork
from amc_agents.errors import MissingExtra


def test_without_psycopg_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"'psycopg' is required .*\[postgres\]"):
        PostgresFork("postgresql://host/shop")


def test_neither_the_worlds_nor_this_module_import_psycopg(repository):
    script = "import amc_agents.envs, sys; assert 'amc_agents.envs.real.postgres' not in sys.modules\n"
    script += "import amc_agents.envs.real.postgres; assert 'psycopg' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=repository, check=True, timeout=120)
