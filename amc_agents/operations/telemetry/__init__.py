"""Traces of runs and decisions for other people's tools; docs/observability.md describes them.

| module | purpose |
|---|---|
| `instrumenting` | switches OpenTelemetry traces on and off |
| `otel_spans`, `otel_requests`, `otel_attributes` | OpenTelemetry spans (extra `otel`) |
| `langsmith` | values as feedback in LangSmith |
| `backlog` | makes spans and sends feedback in a thread of its own |
"""

from amc_agents.operations.telemetry.instrumenting import flush, instrument, uninstrument

__all__ = ["flush", "instrument", "uninstrument"]
