"""Critics: a trajectory -> a prediction of its future return.

| file or package | content |
|---|---|
| `spec`, `options` | parse a critic's string |
| `allowed` | the critics that a request may name |
| `uses` | which method accepts which critic, and the conversion |
| `adapting`, `validation` | your own objects and functions; failures become `CriticError` |
| `render`, `tokenizing` | prompts of critics that read text |
| `value`, `verdict`, `goal`, `judge`, `uniform` | the kinds of critics |
| `server` | model servers: HTTP, responses, the handshake with a checkpoint |
| `asking`, `disk_cache` | chat models as critics; answers cached on disk |
| `log_odds`, `isotonic`, `reliability`, `saved` | conversions, calibration, files |
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
