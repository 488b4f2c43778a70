"""A process that dies in its second weighing: python -m tests.frozen.killed DATABASE."""

from __future__ import annotations

import os
import sys

from langgraph.checkpoint.sqlite import SqliteSaver

from tests.frozen.configurations import THREAD, killed_graph
from tests.frozen.parts import START

if __name__ == "__main__":
    with SqliteSaver.from_conn_string(sys.argv[1]) as kept:
        killed_graph(kept, lambda: os._exit(9)).invoke(START, THREAD, durability="sync")
