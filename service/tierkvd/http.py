"""HTTP on loopback: /metrics for Prometheus, /healthz and /readyz for whoever supervises the daemon."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from tierkv.config import Address
from tierkv.errors import UnavailableError
from tierkv.store import TieredStore
from tierkvd.metrics import StoreCollector


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
