"""HTTP on loopback: /metrics for Prometheus, /healthz and /readyz for whoever supervises the daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tierkv.config import Address
from tierkv.errors import UnavailableError
from tierkv.store import TieredStore


class StoreCollector:
    """Turns a snapshot of the store into metrics when Prometheus asks."""

    def __init__(self, store: TieredStore) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        stats = self._store.stats()
        for name, text in (("capacity_bytes", "Capacity"), ("used_bytes", "Bytes used"), ("blocks", "Blocks held")):
            gauge = GaugeMetricFamily(f"tierkv_tier_{name}", f"{text} by tier.", labels=["tier"])
            for tier in stats.tiers:
                gauge.add_metric([tier.name], getattr(tier, name))
            yield gauge
        yield _counter("tierkv_hits", "Blocks served, by the tier they were found in.", "tier", stats.hits)
        yield _counter("tierkv_misses", "Blocks not served, by reason.", "reason", stats.misses)
        yield _counter("tierkv_events", "What else happened: evictions, damage, refusals, bytes moved.", "event", stats.counters)
        for name, value in (("sessions", stats.sessions), ("leases", stats.leases), ("reservations", stats.reservations)):
            yield GaugeMetricFamily(f"tierkv_{name}", f"Open {name}.", value=value)
        yield GaugeMetricFamily("tierkv_degraded", "Things that do not work now; status says which.", value=len(stats.degraded))
        yield GaugeMetricFamily("tierkv_uptime_seconds", "Seconds since the store was opened.", value=stats.uptime_s)


def _counter(name: str, text: str, label: str, values: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


class HttpServer:
    """is_ready — whether calls are served."""

    def __init__(self, address: Address, store: TieredStore, is_ready: Callable[[], bool]) -> None:
        self._address = address
        self._is_ready = is_ready
        self._registry = CollectorRegistry()
        self._registry.register(StoreCollector(store))
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Returns the address it listens on. Raises UnavailableError when it is taken."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._address.host, self._address.port).start()
        except OSError as error:
            await self.stop()
            raise UnavailableError(
                "the http address is taken; choose another with --http HOST:PORT, or --http off",
                http=self._address,
                error=error.strerror,
            ) from error
        host, port = self._runner.addresses[0][:2]
        return f"{host}:{port}"

    async def stop(self) -> None:
        """May be called twice."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        return web.Response(text="ready\n") if self._is_ready() else web.Response(status=503, text="not ready\n")
