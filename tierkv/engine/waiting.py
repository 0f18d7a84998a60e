"""Who waits, and who goes next: by class, then those that were preempted, then fair between tenants, then by arrival.

A request rises by one class for each `ageing_s` that it waits, so nobody waits for ever. Fair means the tenant that was served the
fewest tokens; one that comes back starts level with those that are here, so that idle time is not saved up (virtual token counter:
Sheng et al., Fairness in Serving Large Language Models, OSDI 2024).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from tierkv.engine.sequence import LiveSequence

MAX_TENANTS = 4096
"""Tenants without requests that are remembered."""


class WaitingSequences:
    """ageing_s — seconds of waiting that are worth one class."""

    def __init__(self, *, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._waiting: dict[LiveSequence, None] = {}
        self._served: OrderedDict[str, float] = OrderedDict()
        self._live: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[LiveSequence]:
        return iter(self._waiting)

    def enter(self, tenant: str) -> None:
        """A request of `tenant` is here, until `leave`."""
        if not self._live.get(tenant):
            least = min((self._served.get(other, 0.0) for other in self._live), default=0.0)
            self._served[tenant] = max(self._served.get(tenant, 0.0), least)
            self._served.move_to_end(tenant)
        self._live[tenant] = self._live.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        """One request of `tenant` is over."""
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant]
            while len(self._served) > MAX_TENANTS + len(self._live):
                oldest = next(iter(self._served))
                if oldest in self._live:
                    self._served.move_to_end(oldest)
                else:
                    del self._served[oldest]

    def serve(self, tenant: str, num_tokens: int) -> None:
        """Tokens of `tenant` were computed."""
        self._served[tenant] = self._served.get(tenant, 0.0) + num_tokens

    def add(self, sequence: LiveSequence, now_s: float) -> None:
        sequence.queued_at_s = now_s
        self._waiting[sequence] = None

    def remove(self, sequence: LiveSequence) -> None:
        """A sequence that does not wait stays as it is."""
        self._waiting.pop(sequence, None)

    def level(self, sequence: LiveSequence, now_s: float) -> int:
        """Its class by now."""
        return sequence.request.priority + int((now_s - sequence.queued_at_s) / self._ageing_s)

    def best(self, now_s: float) -> LiveSequence | None:
        """Who goes next; stays in the list. Cost: a look at each."""

        def place(sequence: LiveSequence) -> tuple[int, bool, float, float]:
            request = sequence.request
            served = self._served.get(request.tenant, 0.0)
            return (-self.level(sequence, now_s), sequence.num_preemptions == 0, served, request.arrived_at_s)

        return min(self._waiting, key=place, default=None)
