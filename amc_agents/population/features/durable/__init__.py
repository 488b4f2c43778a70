"""Durable points: a population survives its process (docs/amc.md).

| file | content |
|---|---|
| `lifecycle` | the points of a run, from its start to their deletion, and a run's start from a point |
| `durability` | save a population |
| `points` | read, write and list points in the graph's checkpointer |
| `lease` | one caller of a thread at a time |
| `records`, `world_record` | what is saved, and how it is restored |
| `interning` | values as nodes of a table in which shared parts are stored once |
"""
