"""Critics: a trajectory -> a prediction of its future return.

| file or package | content |
|---|---|
| `spec` | parse a critic's string, and read its options |
| `allowed` | the critics that a request may name, and what their errors may reveal |
| `uses` | which method accepts which critic, and the conversion |
| `adapting` | your own objects and functions; failures and invalid answers become `CriticError` |
| `render`, `tokenizing` | prompts of critics that read text |
| `value`, `verdict`, `goal`, `judge`, `classifier` | the kinds of critics |
| `server` | model servers: HTTP, their answers, and the checkpoints of what they serve |
| `asking` | chat models as critics |
| `saved`, `calibration`, `reliability` | files of critics with their golden scores, calibrations, and their measure |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.critics.allowed import AllowedCritics
    from amc_agents.critics.spec import parse_critic

__all__ = [
    "AllowedCritics",
    "parse_critic",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "AllowedCritics": "critics.allowed",
        "parse_critic": "critics.spec",
    },
)
