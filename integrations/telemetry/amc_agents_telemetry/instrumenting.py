"""Switch OpenTelemetry traces on and off."""

from __future__ import annotations

import atexit
import os

from opentelemetry._logs import LoggerProvider
from opentelemetry.trace import TracerProvider

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.runtime.tracing import set_tracer
from amc_agents_telemetry.otel_spans import OtelTracer

CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The switch of OpenTelemetry's GenAI conventions for texts."""
_ON, _OFF = ("true", "1", "span_only", "span_and_event"), ("", "false", "0", "no_content")
FLUSH_LIMIT_S = 30.0

_active: OtelTracer | None = None


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    logger_provider: LoggerProvider | None = None,
    capture_content: bool | None = None,
) -> None:
    """Trace all further runs and decisions of this process with OpenTelemetry.

    Set up the providers and their exporters first. A second call replaces the first.

    Args:
        tracer_provider: makes the spans. Default: the global provider.
        logger_provider: takes the critics' values as `gen_ai.evaluation.result` events. Default: the global provider.
        capture_content: record the texts of messages, tool calls and errors. Default: what
            OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT says, or else False.

    Raises:
        ConfigurationError: the environment variable has an unknown value.
    """
    global _active
    content = _content_wanted() if capture_content is None else capture_content
    uninstrument()
    _active = OtelTracer(tracer_provider, logger_provider, content=content)
    set_tracer(_active)
    atexit.register(flush)  # Before the providers' own, because they were created earlier.


def uninstrument() -> None:
    """Trace no further runs, and export the spans so far."""
    global _active
    if _active is not None:
        set_tracer(None)
        atexit.unregister(flush)
        _active.flush(FLUSH_LIMIT_S)
        _active.stop()
        _active = None


def flush(timeout_s: float = FLUSH_LIMIT_S) -> bool:
    """Export the spans and events so far; for the end of a script, and for functions that are frozen between calls.

    Args:
        timeout_s: maximum time to wait.

    Returns:
        Whether everything was exported in time.
    """
    return _active is None or _active.flush(timeout_s)


def _content_wanted() -> bool:
    given = os.environ.get(CONTENT_VARIABLE, "").strip().lower()
    if given in (*_ON, *_OFF):
        return given in _ON
    raise ConfigurationError(
        f"{CONTENT_VARIABLE} must be NO_CONTENT, SPAN_ONLY, SPAN_AND_EVENT, true or false, got {quoted(given, 40)}; "
        "events with content (EVENT_ONLY) are not supported"
    )
