"""The spans and events of a test, in memory."""

from __future__ import annotations

from amc_agents_telemetry import flush, instrument, uninstrument
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Seen:
    """Traces what runs inside the block."""

    def __init__(self, *, capture_content=False):
        self._content = capture_content
        self._exporter, self._logs = InMemorySpanExporter(), InMemoryLogRecordExporter()
        self.provider, self.logger_provider = TracerProvider(), LoggerProvider()
        self.started = []
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.logger_provider.add_log_record_processor(SimpleLogRecordProcessor(self._logs))

    def __enter__(self):
        instrument(tracer_provider=self.provider, logger_provider=self.logger_provider, capture_content=self._content)
        return self

    def __exit__(self, *_):
        uninstrument()
        self.provider.shutdown()
        self.logger_provider.shutdown()

    @property
    def spans(self):
        assert flush(60)
        return sorted(self._exporter.get_finished_spans(), key=lambda span: (span.start_time, span.context.span_id))

    @property
    def events(self):
        assert flush(60)
        return [each.log_record for each in self._logs.get_finished_logs()]

    def named(self, prefix):
        return [span for span in self.spans if span.name.startswith(prefix)]

    @property
    def runs(self):
        return self.named("invoke_workflow")

    @property
    def agents(self):
        return self.named("invoke_agent")

    def below(self, parent, prefix=""):
        return [
            span
            for span in self.named(prefix)
            if span.parent is not None and span.parent.span_id == parent.context.span_id
        ]

    def linked(self, span):
        """The spans to which a span links as its ancestors."""
        by_id = {each.context.span_id: each for each in self.spans}
        return [by_id[link.context.span_id] for link in span.links if link.attributes["amc.link"] != "winner"]

    @property
    def text(self):
        """All names, attributes and descriptions of all spans and events."""
        spans = [(span.name, dict(span.attributes), span.status.description, span.events) for span in self.spans]
        return repr([spans, [(event.body, dict(event.attributes)) for event in self.events]])
