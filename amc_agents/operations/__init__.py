"""Around the methods: what comes before a run and after it.

| package | content |
|---|---|
| `importing` | logs of other tools as trajectories |
| `rollout` | from an agent that looks better to an agent that is switched on |
| `page`, `report` | pages of a run, and of comparisons and datasets |
| `telemetry` | traces for other people's tools |
| `serve`, `doctor` | vLLM servers for models; checks of a configuration |
"""
