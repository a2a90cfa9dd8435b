"""Sends spans to a collector over OTLP (HTTP, protobuf). Called by `pg monitoring trace --otlp URL`.

Ids follow from what a span is, so sending a run twice gives the same spans, not twice as many.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from itertools import islice

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags

from proving_ground.bench.loglines import Clock
from proving_ground.monitoring.traces import Span

BATCH = 512  # spans a request
TIMEOUT_S = 10.0  # for a batch, the exporter's own retries included
PATH = "/v1/traces"
SERVICE = "proving-ground"


class ExportError(ConnectionError):
    """The collector could not be reached, or refused: one line with what and where."""


class Complaints(logging.Handler):
    """Keeps what the exporter says when something goes wrong, instead of a traceback on the terminal."""

    last = "no answer"

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first line."""
        self.last = record.getMessage().splitlines()[0]


def export(found: Iterable[Span], url: str, run_id: str, clock: Clock) -> int:
    """Send spans to the collector at `url` (with or without /v1/traces); how many were sent.

    Raises:
        ExportError: what was sent before stays sent.
    """
    where = url if url.endswith(PATH) else url.rstrip("/") + PATH
    if not where.startswith(("http://", "https://")):
        raise ExportError(f"--otlp {url}: allowed: http://HOST:PORT or https://HOST:PORT")
    complaints = Complaints()
    log = logging.getLogger("opentelemetry")
    log.addHandler(complaints)
    log.propagate = False
    exporter = OTLPSpanExporter(endpoint=where, timeout=TIMEOUT_S)
    try:
        return send(exporter, (readable(it, run_id, clock) for it in found))
    except ExportError:
        raise ExportError(f"{where}: {complaints.last}") from None
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]  # of a package that else is typed
        log.removeHandler(complaints)
        log.propagate = True


def send(exporter: OTLPSpanExporter, spans: Iterable[ReadableSpan]) -> int:
    """Batch by batch, in order."""
    sent, left = 0, iter(spans)
    while batch := list(islice(left, BATCH)):
        if exporter.export(batch) is not SpanExportResult.SUCCESS:
            raise ExportError
        sent += len(batch)
    return sent


def readable(span: Span, run_id: str, clock: Clock) -> ReadableSpan:
    """A span as OpenTelemetry has them: Unix times in ns, attributes with `proving_ground.` before their names."""
    return ReadableSpan(
        span.name,
        context=context(span, run_id),
        parent=context(span.parent, run_id) if span.parent else None,
        resource=Resource({"service.name": SERVICE, "proving_ground.run": run_id}),
        attributes={f"proving_ground.{key}": value for key, value in {**span.about, "track": span.track}.items()},
        start_time=unix_ns(span.begin_t, clock),
        end_time=unix_ns(span.end_t, clock),
    )


def context(span: Span, run_id: str) -> SpanContext:
    """The ids: of the trace from the run, of the span from its track, name and begin."""
    trace = int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:16], "big")
    own = hashlib.sha256(f"{run_id} {span.track} {span.name} {span.begin_t!r}".encode()).digest()
    return SpanContext(trace, int.from_bytes(own[:8], "big"), is_remote=False, trace_flags=TraceFlags(1))


def unix_ns(t: float, clock: Clock) -> int:
    """A moment of the run's clock as Unix time."""
    return round((clock.wall_s + t - clock.t) * 1e9)
