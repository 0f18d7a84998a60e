"""What hints do: they move blocks in the order of leaving, and keep some out of it (`tierkv.model.hints`).

Called with the store's lock held, after the call that brought the hints has done its own work. It decides nothing alone: who may
leave first is `tierkv.policies.expiry`, who is kept `tierkv.placement.retention`, how fast time runs `tierkv.placement.pace`.

A pin, a high priority, a closed session and an idle time speak of the whole conversation: of the given blocks and all before them.
A low priority speaks of the given blocks only, because what comes before them was of use to somebody. Neither a closed session, nor
a low priority, nor an idle time touches what another chain shares or another lease holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierkv.clock import Clock
from tierkv.index.entry import BlockEntry
from tierkv.index.holds import SessionId
from tierkv.model.hints import Hints, Priority
from tierkv.model.keys import BlockKey
from tierkv.placement.pace import Pace
from tierkv.placement.residency import Residency
from tierkv.policies.base import Policy
from tierkv.policies.expiry import unshared_tail

_LONGEST_IDLE_EVENTS = 1 << 40
"""What is wanted later than that is as good as never."""


class Adviser:
    """Applies hints to the books and the policies of every tier."""

    def __init__(self, residency: Residency, clock: Clock) -> None:
        self._books = residency
        self._clock = clock
        policies = [residency.host_policy, residency.disk_policy]
        self._paces: list[tuple[Policy[BlockKey], Pace]] = [(policy, Pace()) for policy in policies if policy is not None]
        self._pool_paces = [Pace() for _ in residency.pools]

    @property
    def _tiers(self) -> list[tuple[Policy[BlockKey], Pace]]:
        """Every policy and its pace; that of a pool is another one when its pages get another size."""
        pools = zip(self._books.pools, self._pool_paces, strict=True)
        return [*self._paces, *((pool.policy, pace) for pool, pace in pools)]

    def tick(self) -> None:
        """Lifts pins that are over and looks at the pace of the policies; about once a second."""
        self._books.retention.expire(self._now_s())
        for policy, pace in self._tiers:
            pace.note(self._clock.monotonic_s(), policy.state().events)

    def take(self, entries: Sequence[BlockEntry], hints: Hints, *, own_pins: int = 0, reader: SessionId | None = None) -> None:
        """Does what `hints` say of held blocks. own_pins — leases on each of them that are the caller's own; reader — whose holds on
        their pages are.

        Costs nothing for hints that name only a request; otherwise O(1) for each of the blocks and of those before them.
        """
        if not entries:
            return
        keys = [entry.key for entry in entries]
        if hints.pin_until_s is not None and hints.pin_until_s <= self._now_s():
            self._books.retention.unpin(self._tail(keys, only_pinned=True))
        elif hints.pin_until_s is not None:
            self._books.retention.pin(self._weighed(entries), hints.pin_until_s)
        if hints.priority is Priority.HIGH:
            self._books.retention.protect(self._weighed(entries))
        if hints.session_closed:
            self._let_go_first(self._tail(self._whole(entries), own_pins=own_pins, reader=reader))
        elif hints.priority is Priority.LOW:
            self._let_go_first(self._tail(keys, own_pins=own_pins, reader=reader))
        elif hints.expected_idle_s is not None:
            self._let_rest(self._tail(self._whole(entries), own_pins=own_pins, reader=reader), hints.expected_idle_s)

    def _let_go_first(self, keys: list[BlockKey]) -> None:
        self._books.retention.unprotect(keys)
        for policy, _ in self._tiers:
            _expect(policy, keys, None)

    def _let_rest(self, keys: list[BlockKey], idle_s: float) -> None:
        """Tells the policies when blocks are wanted again, in their time; nothing while its pace is not known."""
        now_s = self._clock.monotonic_s()
        for policy, pace in self._tiers:
            in_events = idle_s * pace.per_second(now_s, policy.state().events)
            if in_events >= 1:
                _expect(policy, keys, min(int(in_events), _LONGEST_IDLE_EVENTS))

    def _tail(
        self, keys: list[BlockKey], *, own_pins: int = 0, reader: SessionId | None = None, only_pinned: bool = False
    ) -> list[BlockKey]:
        """The end of a chain that is nobody else's; with `only_pinned`: that no other pinned block needs."""
        index, retention = self._books.index, self._books.retention
        if only_pinned:
            return unshared_tail(index.chains, keys, retention.is_pinned, lambda _: False)

        def is_used(key: BlockKey) -> bool:
            entry = index.get(key)
            if entry is None:
                return False
            return entry.pins > own_pins or (entry.page_holds > 0 and self._is_held_by_others(key, reader))

        return unshared_tail(index.chains, keys, lambda key: index.get(key) is not None, is_used)

    def _is_held_by_others(self, key: BlockKey, reader: SessionId | None) -> bool:
        pages = [(pool, page) for pool in self._books.pools if (page := pool.page_of(key)) is not None]
        return any(page.num_holds > 0 if reader is None else pool.is_held_by_others(reader, page) for pool, page in pages)

    def _whole(self, entries: Sequence[BlockEntry]) -> list[BlockKey]:
        return [entry.key for entry in [*self._books.index.ancestors(entries[0].parent), *entries]]

    def _weighed(self, entries: Sequence[BlockEntry]) -> list[tuple[BlockKey, int]]:
        whole = [*self._books.index.ancestors(entries[0].parent), *entries]
        return [(entry.key, self._books.host.footprint_bytes(entry.block_bytes)) for entry in whole]

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9


def _expect(policy: Policy[BlockKey], keys: Sequence[BlockKey], in_events: int | None) -> None:
    resident = [key for key in keys if key in policy]
    if resident:
        policy.expect(resident, in_events)
