"""What your logs say: which method would have helped your agent, replayed on its own runs.

`amc advise DATA` is the command; `advise` is the same from Python. No model is called, but by a critic that you name.
"""

from amc_agents.operations.advise.advising import Advice, advise

__all__ = ["Advice", "advise"]
