"""Comparisons of methods x tasks x seeds: engine, statistics, tables and pictures.

| file or package | content |
|---|---|
| `methods`, `crafting`, `selection` | the methods, their shipped settings, and the choice among them |
| `comparison`, `plan` | what is compared, as objects and as plain values |
| `runner`, `growth`, `searches` | play one run: particles, tree searches, Reflexion |
| `results_folder`, `records`, `run_files` | what is stored of each run |
| `engine`, `executors` | execute all runs, in processes or on a cluster, and resume them |
| `statistics` | means over tasks, paired differences |
| `report`, `report_tables`, `decision_report`, `plots` | results as JSON, Markdown and pictures |
| `tuning`, `tuned` | settings chosen on training tasks |
| `own` | the same with the user's own agent |
| `planner_critic` | a critic that knows the world, as upper bound |
"""
