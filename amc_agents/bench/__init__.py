"""Comparisons of methods x tasks x seeds: engine, statistics, tables and pictures.

| file or package | content |
|---|---|
| `comparison`, `methods`, `plan`, `selection`, `crafting` | what is compared: methods, tasks, settings |
| `runner`, `engine`, `work`, `results_folder` | run it in several processes, and resume it |
| `records`, `scores`, `decisions` | what is stored of each run |
| `statistics` | means over tasks, paired differences |
| `report`, `report_tables`, `decision_report`, `plots`, `figures` | results as JSON, Markdown and pictures |
| `tuning` | settings chosen on training tasks |
| `oracle`, `planner_critic` | critics that know the world, as upper bounds |
| `embedded_imagination`, `plain_agent` | an embedded forward model; the text agent without a graph |
"""
