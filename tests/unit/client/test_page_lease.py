"""A page lease while its events arrive, and whatever else may come instead of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import grpc
import pytest

from tierkv.client.page_lease import ClientPageLease
from tierkv.model.outcomes import MissReason, TierName
from tierkv.wire._generated import tierkv_pb2 as pb

Event = pb.AwaitPagesEvent


def lease_of(
    num_pages: int, num_ready: int, misses: Counter[MissReason | None] | None = None, left_s: float = 10.0
) -> ClientPageLease:
    counted: Counter[MissReason | None] = Counter() if misses is None else misses

    def count(num_blocks: int, miss: MissReason | None) -> None:
        counted[miss] += num_blocks

    pages, tiers = tuple(range(num_pages)), (TierName.HOST,) * num_pages
    return ClientPageLease(pages, tiers, None, num_ready, left_s=lambda: left_s, on_short=count)


def ready(num_ready: int) -> Event:
    return Event(ready=pb.PagesReady(num_ready=num_ready))


def ended(num_blocks: int, miss: pb.MissReason = pb.MISS_REASON_UNSPECIFIED) -> Event:
    return Event(ended=pb.PagesEnded(num_blocks=num_blocks, miss=miss))


def state(lease: ClientPageLease) -> tuple[int, int, MissReason | None, bool]:
    return lease.num_ready, lease.num_blocks, lease.miss, lease.is_settled


class Broken(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code


def test_what_is_there_is_settled_and_waits_for_nothing() -> None:
    lease = lease_of(3, 3)
    assert lease.wait(0) == 3
    assert state(lease) == (3, 3, None, True)


def test_it_grows_with_its_events() -> None:
    lease = lease_of(4, 1)
    seen = []

    def events() -> Iterator[Event]:
        for event in (ready(3), ready(4), ended(4)):
            yield event
            seen.append(state(lease))

    lease.listen(events())
    assert seen == [(3, 4, None, False), (4, 4, None, True), (4, 4, None, True)]


def test_it_ends_where_the_daemon_says() -> None:
    misses: Counter[MissReason | None] = Counter()
    lease = lease_of(4, 1, misses)
    lease.listen(iter([ready(2), ended(2, pb.MISS_REASON_CHECKSUM)]))
    assert state(lease) == (2, 2, MissReason.CHECKSUM, True)
    assert misses == {MissReason.CHECKSUM: 2}
    assert len(lease.pages) == 4


@pytest.mark.parametrize(
    "nonsense",
    [ready(5), ready(0), ended(5), ended(0), Event()],
    ids=["more", "fewer", "more at the end", "fewer at the end", "neither"],
)
def test_events_that_make_no_sense_end_it_where_it_stands(nonsense: Event) -> None:
    lease, stopped = lease_of(4, 1), threading.Event()
    lease.stop_listening = stopped.set
    lease.listen(iter([ready(2), nonsense, ready(4)]))
    assert state(lease) == (2, 2, MissReason.UNAVAILABLE, True)
    assert stopped.is_set()


@pytest.mark.parametrize(
    ("code", "miss"),
    [(grpc.StatusCode.DEADLINE_EXCEEDED, MissReason.TIMEOUT), (grpc.StatusCode.UNAVAILABLE, MissReason.UNAVAILABLE)],
)
def test_a_stream_that_breaks_ends_it_where_it_stands(code: grpc.StatusCode, miss: MissReason) -> None:
    def events() -> Iterator[Event]:
        yield ready(2)
        raise Broken(code)

    lease = lease_of(4, 1)
    lease.listen(events())
    assert state(lease) == (2, 2, miss, True)


def test_a_stream_that_just_stops_ends_it() -> None:
    lease = lease_of(4, 1)
    lease.listen(iter([ready(3)]))
    assert state(lease) == (3, 3, MissReason.UNAVAILABLE, True)


@pytest.mark.parametrize(("left_s", "timeout_s"), [(10.0, 0.0), (0.0, None), (-1.0, 5.0)])
def test_a_wait_that_is_over_ends_it_and_the_stream(left_s: float, timeout_s: float | None) -> None:
    misses: Counter[MissReason | None] = Counter()
    lease, stopped = lease_of(4, 1, misses, left_s), threading.Event()
    lease.stop_listening = stopped.set
    assert lease.wait(timeout_s) == 1
    assert stopped.is_set()
    lease.listen(iter([ready(4), ended(4)]))  # what was under way already
    assert state(lease) == (1, 1, MissReason.TIMEOUT, True)
    assert misses == {MissReason.TIMEOUT: 3}


def test_a_wait_ends_with_the_last_event() -> None:
    lease, gate = lease_of(4, 1), threading.Event()

    def events() -> Iterator[Event]:
        gate.wait(10)
        yield ended(3, pb.MISS_REASON_EVICTED)

    listener = threading.Thread(target=lease.listen, args=(events(),))
    listener.start()
    gate.set()
    assert lease.wait() == 3
    assert lease.miss is MissReason.EVICTED
    listener.join()


def test_an_event_that_comes_first_counts_although_the_wait_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    misses: Counter[MissReason | None] = Counter()
    lease = lease_of(4, 1, misses)

    class Late(threading.Condition):
        """Whoever waits for it finds that others have had it meanwhile."""

        def __enter__(self) -> bool:
            monkeypatch.setattr(lease, "_num_ready", 3)
            return super().__enter__()

    monkeypatch.setattr(lease, "_changed", Late())
    lease.cut(MissReason.TIMEOUT)
    assert state(lease) == (3, 3, MissReason.TIMEOUT, True)
    assert misses == {MissReason.TIMEOUT: 1}
