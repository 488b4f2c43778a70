"""An agent over SQLite: each particle changes its own copy of the database, and the winner's changes are applied.

This example needs no key: a rule that errs at random replaces the chat model.
"""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from amc_agents import AtSteps, amc, current_environment, effect
from amc_agents.envs import SqliteFork
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel

TABLE = """CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, cents INTEGER, state TEXT);
INSERT INTO orders VALUES (1, 'lamp', 4900, 'sent'), (2, 'mug', 900, 'broken'), (3, 'rug', 9900, 'sent')"""


@tool
@effect("world")
def sql(statement: str) -> str:
    """Execute an SQL statement."""
    with current_environment(SqliteFork).connect() as connection:
        return str(connection.execute(statement).fetchall())


def respond(messages):
    """Set the state of a random order, and read the table."""
    order = int(particle_rng().integers(1, 4))
    statements = [f"UPDATE orders SET state = 'refund due' WHERE id = {order}", "SELECT * FROM orders"]
    if len(messages) > 4:
        return "The refund is due."
    statement = statements[len(messages) // 2]
    return AIMessage("", tool_calls=[{"name": "sql", "args": {"statement": statement}, "id": f"call-{len(messages)}"}])


def no_broken_item_and_few_refunds(trajectories):
    """A critic: it reads the tables that the particles have printed."""
    tables = [" ".join(step.observation for step in path.steps) for path in trajectories]
    return [-table.count("broken") - table.count("refund due") for table in tables]


if __name__ == "__main__":
    path = Path(tempfile.mkdtemp()) / "shop.db"
    with sqlite3.connect(path) as database:
        database.executescript(TABLE)
    agent = create_agent(ScriptedChatModel(respond=respond), [sql])
    search = amc(agent, no_broken_item_and_few_refunds, n_particles=8, resample=AtSteps(2), beta=0.3, seed=0,
                 environment=lambda state: SqliteFork(path))  # fmt: skip
    with search.run({"messages": [("user", "Note the refund of the broken item.")]}) as run:
        print(run.best_world.diff(), end="")
        run.best_world.apply()
    print(database.execute("SELECT id, state FROM orders").fetchall())
