"""Around the methods: what comes before a run and after it.

| package | content |
|---|---|
| `importing` | logs of other tools as trajectories |
| `rollout` | from an agent that looks better to an agent that is switched on |
| `page`, `report` | pages of a run, and of comparisons and datasets |
| `serve`, `doctor` | vLLM servers for models; checks of a configuration |
"""
