"""A PostgreSQL database per particle, for agents that query and write a staging database."""

from amc_agents_postgres.databases import remove_snapshots
from amc_agents_postgres.world import PostgresFork

__all__ = ["PostgresFork", "remove_snapshots"]
