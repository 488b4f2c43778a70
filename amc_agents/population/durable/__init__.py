"""Durable points: a population survives its process (docs/amc.md).

| file | content |
|---|---|
| `lifecycle` | the points of a run, for the nodes of the graph |
| `durability` | save a population |
| `recorded` | start a run from a point |
| `points` | read and write points in the graph's checkpointer |
| `interning` | values as nodes of a table in which shared parts are stored once |
| `system_record`, `particle_record`, `world_record`, `random_state` | what is saved, and how it is restored |
"""
