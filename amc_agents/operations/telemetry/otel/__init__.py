"""OpenTelemetry spans of runs, decisions and worlds (extra `otel`).

| module | purpose |
|---|---|
| `tracer` | makes the spans that the seam `runtime.tracing` asks for |
| `spans`, `requests` | runs, particles and parts of methods; requests to models and calls of tools |
| `attributes` | the names of attributes, and what they contain |
| `recorder`, `backlog` | begin and end spans; make them in a thread of their own |
"""

from amc_agents.errors import MissingExtra

try:
    import opentelemetry._logs
    import opentelemetry.trace  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtra("opentelemetry", "otel") from error
