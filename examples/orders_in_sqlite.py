"""An agent over SQLite: each particle changes its own copy of the database, and only one of them pays. Needs no key."""

import sqlite3
import tempfile
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from amc_agents import amc, current_environment, effect
from amc_agents.envs import SqliteFork
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel

TABLE = "CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT); INSERT INTO orders VALUES (1, 'sent'), (2, 'broken')"


@tool
@effect("world")
def note_refund(order: int) -> str:
    """Note a refund in the particle's database, and return all orders."""
    with current_environment(SqliteFork).connect() as connection:
        connection.execute("UPDATE orders SET state = 'refunded' WHERE id = ?", (order,))
        return str(connection.execute("SELECT * FROM orders").fetchall())


@tool
@effect("commit")
def refund(order: int) -> str:
    """Pay an order back. This happens in reality, once."""
    print(f"the bank pays order {order} back")
    return f"order {order} is paid back"


def respond(messages):
    """Note the refund of a random order, and pay it."""
    if len(messages) > 4:
        return "The refund is paid."
    noted = len(messages) > 2
    args = messages[1].tool_calls[0]["args"] if noted else {"order": int(particle_rng().integers(1, 3))}
    return AIMessage(
        "", tool_calls=[{"name": "refund" if noted else "note_refund", "args": args, "id": f"call-{noted}"}]
    )


def nothing_broken(trajectories):
    """A critic: it reads the orders that the particles have printed."""
    return [-str(path.steps).count("broken") - str(path.steps).count("refunded") for path in trajectories]


if __name__ == "__main__":
    path = Path(tempfile.mkdtemp()) / "shop.db"
    (database := sqlite3.connect(path)).executescript(TABLE)
    agent = create_agent(ScriptedChatModel(respond=respond), [note_refund, refund])
    search = amc(agent, nothing_broken, n_particles=8, beta=0.3, seed=0, environment=lambda state: SqliteFork(path))
    with search.run({"messages": [("user", "Refund the broken item.")]}) as run:
        print(*run.commits, run.best_world.diff(), sep="\n", end="")
        run.best_world.apply()
    print(database.execute("SELECT id, state FROM orders").fetchall())
