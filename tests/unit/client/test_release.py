"""What a client releases, seen from a link that answers nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tierkv.client.address import LocalAddress
from tierkv.client.lease import Arrivals, ClientLease
from tierkv.client.progress import LeaseProgress
from tierkv.client.sync import Client
from tierkv.testing.clock import ManualClock
from tierkv.wire._generated import tierkv_pb2 as pb


class _Call:
    def add_done_callback(self, _: Any) -> None:
        pass

    def cancel(self) -> None:
        pass


def test_a_lease_whose_blocks_came_too_late_is_released() -> None:
    sent: list[Any] = []

    def release(request: Any, **_: Any) -> _Call:
        sent.append(request)
        return _Call()

    link: Any = SimpleNamespace(
        is_alive=True, metadata=(), stub=SimpleNamespace(Release=SimpleNamespace(future=release)), close=lambda: None
    )
    progress = LeaseProgress()
    progress.take_reply(pb.AcquireReply(lease_id=7, tiers=[pb.TIER_DISK] * 2), lambda _: memoryview(b""))
    late = pb.AwaitEvent(ended=pb.LeaseEnded(num_blocks=0, miss=pb.MISS_REASON_TIMEOUT))
    arrivals = Arrivals(
        lambda: iter([late]), lambda event: progress.take_await(event, lambda _: memoryview(b"")), lambda: None, print
    )
    lease = ClientLease(link, progress, arrivals, expires_at_s=1e9, clock=ManualClock())
    assert lease.blocks() == ()

    client = Client(LocalAddress(None), clock=ManualClock())
    client.release(lease)
    client.close()

    assert sent == [pb.ReleaseRequest(lease_ids=[7])]
