"""Spans in JSON: as OTLP (the collector's file exporter), or one object per span (the SDK's console exporter)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from amc_agents.operations.importing.records import field_of
from amc_agents.operations.importing.runs import UnreadableRecord


class Span(NamedTuple):
    """What an import needs of a span; serialisable as JSON."""

    trace: str
    start: str
    """Start time; sorts by time within a format."""
    attributes: dict[str, Any]
    evaluations: dict[str, float]
    """Evaluation name -> score, from the span's events."""


def spans_in(value: Any) -> Iterator[Span]:
    """Yield the spans of a JSON value.

    Raises:
        UnreadableRecord: the value has another form.
    """
    try:
        if "resourceSpans" in value:
            scopes = (scope for resource in value["resourceSpans"] for scope in resource.get("scopeSpans", ()))
            yield from (_otlp(span) for scope in scopes for span in scope.get("spans", ()))
        else:
            attributes = _attributes(value)
            yield Span(
                _storable(field_of(value, "context.trace_id")), _storable(value["start_time"]), attributes,
                _evaluations(attributes, [dict(event.get("attributes") or {}) for event in value.get("events") or ()]),
            )  # fmt: skip
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise UnreadableRecord(
            f"not a span ({type(error).__name__}): expected `resourceSpans` (OTLP), or `context`, `start_time` and "
            "`attributes`"
        ) from None


def _attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span with dotted names: exporters nest them, or write each as a field of the span."""
    nested = span.get("attributes") or {}
    attributes = _flat(json.loads(nested) if isinstance(nested, str) else nested)
    mark = "attributes."
    attributes |= _flat({name[len(mark) :]: value for name, value in span.items() if name.startswith(mark)})
    if isinstance(span.get("span_kind"), str):
        attributes.setdefault("openinference.span.kind", span["span_kind"])
    return attributes


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _otlp(span: Mapping[str, Any]) -> Span:
    attributes = _pairs(span.get("attributes", ()))
    events = [_pairs(event.get("attributes", ())) for event in span.get("events", ())]
    start = f"{int(span['startTimeUnixNano']):020d}"
    return Span(_storable(span["traceId"]), start, attributes, _evaluations(attributes, events))


def _storable(value: Any) -> str:
    if not isinstance(value, str | int):
        raise TypeError("expected text or a number")
    # A lone surrogate cannot be stored.
    return str(value).encode("utf-8", "replace").decode("utf-8")


def _pairs(attributes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: _value(pair["value"]) for pair in attributes}


def _value(value: Mapping[str, Any]) -> Any:
    """Return a value of OTLP, which names its type."""
    for kind, content in value.items():
        match kind:
            case "arrayValue":
                return [_value(item) for item in content.get("values", ())]
            case "kvlistValue":
                return _pairs(content.get("values", ()))
            case "intValue":
                return int(content)
            case _:
                return content
    return None


def _evaluations(attributes: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    named = [(each.get(_NAME), each.get(_SCORE)) for each in (attributes, *events)]
    return {name: score for name, score in named if isinstance(name, str) and isinstance(score, int | float)}


_NAME, _SCORE = "gen_ai.evaluation.name", "gen_ai.evaluation.score.value"
