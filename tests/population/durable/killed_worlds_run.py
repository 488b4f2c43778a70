"""A process that runs particles over files and a database, and is killed at a call of the critic.

python -m tests.population.durable.killed_worlds_run FOLDER CALL
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path

import numpy as np
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver

from amc_agents import EveryStep, amc, current_environment, effect
from amc_agents.envs import DirectoryFork, SqliteFork, WorldBundle
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel
from tests.population.durable.scenario import CONFIG

START = {"messages": [("user", "note numbers")]}
LENGTH = 4


@tool
@effect("world")
def note(number: int) -> str:
    """Write a number into the file and the database."""
    world = current_environment(WorldBundle)
    with (world.files.path / "notes.txt").open("a") as file:
        file.write(f"{number}\n")
    with world.db.connect() as connection:
        connection.execute("INSERT INTO notes (number) VALUES (?)", (number,))
        rows = connection.execute("SELECT number FROM notes ORDER BY id").fetchall()
    assert [str(row[0]) for row in rows] == (world.files.path / "notes.txt").read_text().split()
    return str(sum(row[0] for row in rows))


def write_original(folder: Path) -> None:
    """Create the folder and the database that the particles copy."""
    (folder / "files").mkdir()
    (folder / "files" / "notes.txt").write_text("")
    (folder / "worlds").mkdir()
    with sqlite3.connect(folder / "notes.db") as connection:
        connection.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, number INTEGER)")


def graph(folder: Path, saver, die_at: int = 0):
    """The graph; with `die_at`, its process is killed at that call of the critic."""
    model_calls, critic_calls = [], []

    def respond(messages):
        model_calls.append(len(messages))
        if sum(isinstance(message, ToolMessage) for message in messages) == LENGTH:
            return "done"
        number = int(particle_rng().integers(100))
        return AIMessage("", tool_calls=[{"name": "note", "args": {"number": number}, "id": f"{len(messages)}"}])

    def total(trajectories):
        critic_calls.append(len(trajectories))
        if len(critic_calls) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        sums = [[float(step.observation) for step in path.steps if step.observation] for path in trajectories]
        return np.array([max(each, default=0.0) for each in sums])

    def world(state):
        options = {"workspace": folder / "worlds"}
        return WorldBundle(
            files=DirectoryFork(folder / "files", **options), db=SqliteFork(folder / "notes.db", **options)
        )

    agent = create_agent(ScriptedChatModel(respond=respond), [note])
    settings = {"n_particles": 4, "resample": EveryStep(), "beta": 20.0, "seed": 3, "checkpointer": saver}
    return amc(agent, total, environment=world, **settings), model_calls


def main(folder: str, call: str) -> None:
    with SqliteSaver.from_conn_string(str(Path(folder) / "checkpoints")) as saver:
        graph(Path(folder), saver, int(call))[0].invoke(START, CONFIG)


if __name__ == "__main__":
    main(*sys.argv[1:])
