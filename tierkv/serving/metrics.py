"""Metrics of the server: what it measures itself, and a snapshot of its engine. docs/engine-server.md lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tierkv.engine.stats import EngineStats
from tierkv.serving.reply import Usage

_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class ServerMetrics:
    """stats — asked whenever Prometheus asks."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(stats))
        self._requests = Counter(
            "tierkv_engine_http_requests", "Requests answered, by path and status.", ("path", "status"), registry=self._registry
        )
        self._tokens = Counter(
            "tierkv_engine_tokens",
            "Tokens of requests: prompt, cached (of the prompt), completion.",
            ("kind",),
            registry=self._registry,
        )
        self._ttft = Histogram(
            "tierkv_engine_time_to_first_token_seconds",
            "From a request's arrival to the first token of each of its choices.",
            buckets=_TTFT_BUCKETS_S,
            registry=self._registry,
        )
        self._between = Histogram(
            "tierkv_engine_time_between_tokens_seconds",
            "Between two tokens of a choice.",
            buckets=_TOKEN_BUCKETS_S,
            registry=self._registry,
        )

    def note_answer(self, path: str, status: int) -> None:
        """path — one that the server has, so that strangers cannot make new series."""
        self._requests.labels(path, str(status)).inc()

    def note_token(self, seconds: float, *, is_first: bool) -> None:
        (self._ttft if is_first else self._between).observe(seconds)

    def note_usage(self, usage: Usage) -> None:
        for kind in ("prompt", "cached", "completion"):
            self._tokens.labels(kind).inc(getattr(usage, f"{kind}_tokens"))

    def expose(self) -> bytes:
        """All of it as Prometheus reads it."""
        return generate_latest(self._registry)


class _EngineCollector:
    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def describe(self) -> list[Metric]:
        """Nothing: the engine need not run yet when the collector is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        sequences = {state: getattr(stats, f"requests_{state}") for state in ("running", "loading", "waiting")}
        yield _gauge("tierkv_engine_sequences", "Sequences now, by state.", "state", sequences)
        pages = {kind: getattr(stats, f"pages_{kind}") for kind in ("total", "held", "free")}
        yield _gauge(
            "tierkv_engine_pages", "Pages of the pool: all, held by sequences of this engine, free for them.", "kind", pages
        )
        yield GaugeMetricFamily(
            "tierkv_engine_is_private", "1 while the engine uses pages of its own, without a daemon.", value=float(stats.is_private)
        )
        yield CounterMetricFamily("tierkv_engine_pages_copied", "Pages brought to the device for hits.", value=stats.pages_copied)
        yield CounterMetricFamily("tierkv_engine_preemptions", "Sequences that gave way to others.", value=stats.preemptions)
        yield _counter(
            "tierkv_engine_hit_tokens", "Tokens of prompts not computed, by the tier they were found in.", "tier", stats.hit_tokens
        )
        yield _counter("tierkv_engine_events", "What else the engine counted.", "event", stats.counters)


def _gauge(name: str, text: str, label: str, values: Mapping[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family


def _counter(name: str, text: str, label: str, values: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family
