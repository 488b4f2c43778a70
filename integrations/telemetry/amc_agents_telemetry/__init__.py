"""Traces of runs and decisions for OpenTelemetry and LangSmith; docs/observability.md describes them."""

from amc_agents_telemetry.instrumenting import flush, instrument, uninstrument

__all__ = ["flush", "instrument", "uninstrument"]
