"""Commit tools and questions to a human: what particles wait for, and what happens once (docs/amc.md).

| file | content |
|---|---|
| `selection` | the choice among the waiting and the finished particles |
| `journal` | one commit call, recorded before and after it runs |
| `passing` | let the selected particle act alone, then continue it in all slots |

`amc_agents.runtime.door` holds the particles.
"""
