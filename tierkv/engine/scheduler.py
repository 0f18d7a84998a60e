"""Decides what a step computes: who runs, who waits, who gives way. Pure: no clock, no thread, no tensor; time is handed in.

A step serves decodes first, then prompts in chunks, within a budget of tokens. A new request joins between steps, with the prefix that
the store holds; while that is on its way the others run. Where pages run short, the lowest and latest sequence is preempted: its full
blocks are committed already and only let go, a copy of its last partial page is kept, and when its turn comes again it fetches them
instead of computing them.

Invariants: whoever ranks first can have every page of the others, so somebody always finishes; a sequence's computed tokens never
exceed its pages; a sequence owns pages only while it is LOADING or RUNNING.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from sortedcontainers import SortedKeyList

from tierkv.engine.sequence import LiveSequence, Request, Slice, State, Tail
from tierkv.engine.settings import EngineSettings
from tierkv.engine.waiting import WaitingSequences
from tierkv.model.outcomes import MissReason, TierName
from tierkv.paging.supply import PageSupply

STUCK_S = 1.0
"""How long nothing may move for want of pages that other processes hold, before one sequence gives up its own."""
PAUSE_S = 0.1
"""How long nobody is admitted after that, so that the others can have them."""
LOOK_S = 0.05
"""How often those who wait are looked through while nothing that concerns them has happened."""


class PageCopies(Protocol):
    """What the scheduler asks of the memory behind the pages."""

    def save(self, page: int) -> Any:
        """A copy of a page's bytes, outside of the pool."""
        ...

    def restore(self, content: Any, page: int) -> None:
        """What `save` returned, over a page."""
        ...


class Scheduler:
    """supply, copies — of one pool; both are replaced when the engine moves to another."""

    def __init__(self, supply: PageSupply, copies: PageCopies, settings: EngineSettings) -> None:
        self.supply = supply
        self.copies = copies
        self.waiting = WaitingSequences(ageing_s=settings.ageing_s)
        self.loading: dict[LiveSequence, None] = {}
        self.running: dict[LiveSequence, None] = {}
        self.num_preemptions = 0
        self.hit_tokens: Counter[TierName] = Counter()
        self.num_copied_pages = 0
        """Pages of hits that had to be brought to the device."""
        self._block_tokens = settings.block_tokens
        self._max_batch_tokens = settings.max_batch_tokens
        self._max_sequences = settings.max_sequences
        self._deadlines: SortedKeyList = SortedKeyList(key=lambda request: request.deadline_at_s)
        self._order = 0
        self._slices: dict[LiveSequence, Slice] = {}
        # Somebody was preempted for pages and nobody has finished since: who does not outrank a running one waits.
        self._is_tight = False
        self._moved_at_s = 0.0
        self._look_at_s = 0.0

    def add(self, request: Request, now_s: float) -> None:
        """Queues the first choice of a request; the others begin where its prompt ends (`fork`)."""
        self._look_at_s = min(self._look_at_s, now_s)
        self.waiting.enter(request.tenant)
        self.waiting.add(request.choices[0], now_s)
        if request.deadline_at_s is not None:
            self._deadlines.add(request)

    def active(self) -> Iterator[LiveSequence]:
        """Sequences that may own pages."""
        yield from self.running
        yield from self.loading

    def due(self, now_s: float) -> list[Request]:
        """Requests whose deadline is over; the caller ends them."""
        return list(self._deadlines.irange_key(max_key=now_s))

    @property
    def next_deadline_s(self) -> float | None:
        return self._deadlines[0].deadline_at_s if self._deadlines else None

    def plan(self, now_s: float) -> list[Slice]:
        """What to compute now, decodes first; empty when nothing can be. Each slice has to be reported with `advance`."""
        self.supply.poll(now_s)
        self._slices = {}
        self._settle(now_s)
        self._serve([one for one in self.running if one.num_uncomputed == 1 and one.tail is None], now_s)
        self._admit(now_s)
        self._settle(now_s)
        self._serve(self.running, now_s)
        self._watch(now_s)
        self.supply.flush()
        return list(self._slices.values())

    def advance(self, piece: Slice) -> None:
        """A slice was computed: its full blocks are committed."""
        sequence = piece.sequence
        sequence.num_computed = piece.stop
        self.waiting.serve(sequence.request.tenant, piece.stop - piece.start)
        self.commit(sequence)

    def commit(self, sequence: LiveSequence) -> None:
        """Names the full blocks that were not named yet."""
        start, stop = sequence.num_committed, sequence.num_computed // self._block_tokens
        if start == stop:
            return
        sequence.extend_keys(self.supply.namespace_id, stop, self._block_tokens)
        parent = sequence.keys[start - 1] if start else None
        self.supply.commit(sequence.keys[start:stop], sequence.pages[start:stop], parent, hints=sequence.request.hints)
        sequence.num_committed = stop

    def fork(self, first: LiveSequence, other: LiveSequence, now_s: float) -> None:
        """Another choice begins where the prompt of `first` ends: full pages are shared, the partial one is copied."""
        full, rest = divmod(first.num_computed, self._block_tokens)
        other.keys = first.keys[:full]
        is_full = len(self.running) >= self._max_sequences
        copy = self.supply.take(1) if rest and not is_full else []
        if copy is None or is_full:
            other.tail = self._tail_of(first)
            self.waiting.add(other, now_s)
            return
        self.supply.share(first.pages[:full])
        other.pages = first.pages[:full] + copy
        if rest:
            self.copies.restore(self.copies.save(first.pages[full]), copy[0])
        other.num_computed, other.num_committed = first.num_computed, full
        self._begin(other, first.level, State.RUNNING)
        self.running[other] = None

    def finish(self, sequence: LiveSequence) -> None:
        """Ends a sequence in whatever state it is; its pages go back at once. May be called twice."""
        if sequence.state is State.FINISHED:
            return
        self.waiting.remove(sequence)
        self._slices.pop(sequence, None)
        sequence.state = State.FINISHED
        sequence.tail = None
        self._is_tight = False
        self._look_at_s = 0.0
        # Last what may fail, so that a sequence that failed once is nowhere any more.
        self._let_go(sequence)
        if sequence.request.is_finished:
            self.waiting.leave(sequence.request.tenant)
            if sequence.request.deadline_at_s is not None:
                self._deadlines.discard(sequence.request)

    def preempt(self, sequence: LiveSequence, now_s: float) -> None:
        """Takes a sequence's pages away; it waits, and goes before new ones of its class."""
        sequence.tail = self._tail_of(sequence) or sequence.tail
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._wait(sequence, now_s)

    def _wait(self, sequence: LiveSequence, now_s: float) -> None:
        self._let_go(sequence)
        self._slices.pop(sequence, None)
        sequence.state = State.WAITING
        self.waiting.add(sequence, now_s)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that so many tokens lie in."""
        return -(-num_tokens // self._block_tokens)

    def check_integrity(self) -> None:
        """Each owned page belongs to somebody, nobody has computed more than lies in his pages."""
        fetches = [sequence.fetch for sequence in self.loading if sequence.fetch is not None]
        leases = [fetch.lease for fetch in fetches if fetch.is_adopted and fetch.lease is not None]
        owned = [*(sequence.pages for sequence in self.active()), *(lease.pages for lease in leases)]
        self.supply.check_integrity(itertools.chain.from_iterable(owned))
        for sequence in self.active():
            assert sequence.num_computed <= len(sequence.pages) * self._block_tokens
            assert sequence.num_committed * self._block_tokens <= sequence.num_computed < len(sequence.tokens)
        for sequence in self.waiting:
            assert sequence.state is State.WAITING and not sequence.pages and sequence.fetch is None

    def _admit(self, now_s: float) -> None:
        if now_s < self._look_at_s:
            return
        while self.waiting:
            best = self.waiting.best(now_s)
            assert best is not None
            level = self.waiting.level(best, now_s)
            if not (self._make_room(level, now_s) and self._may_begin(best, level)):
                self._look_at_s = now_s + LOOK_S
                return
            self._load(best, level)

    def _make_room(self, level: int, now_s: float) -> bool:
        """Whether one more may run; who is outranked gives way."""
        if len(self.running) + len(self.loading) < self._max_sequences:
            return True
        lowest = max(self.active(), key=lambda sequence: sequence.rank)
        if lowest.level >= level:
            return False
        self.preempt(lowest, now_s)
        return True

    def _may_begin(self, sequence: LiveSequence, level: int) -> bool:
        """Whether there are pages, or somebody who has to give up his own. Nobody else's are of use: he would be back at once."""
        holders = [one.level for one in self.active() if one.holds_pages]
        if not holders or min(holders) < level:
            return True
        needed = self.pages_for(min(len(sequence.tokens), self._max_batch_tokens))
        return not self._is_tight and self.supply.may_offer(needed)

    def _load(self, sequence: LiveSequence, level: int) -> None:
        """Asks for the prefix that the store holds; the last token is always computed."""
        self.waiting.remove(sequence)
        self._begin(sequence, level, State.LOADING)
        num_blocks = (len(sequence.tokens) - 1) // self._block_tokens
        sequence.extend_keys(self.supply.namespace_id, num_blocks, self._block_tokens)
        if num_blocks:
            sequence.fetch = self.supply.fetch(sequence.keys[:num_blocks], hints=sequence.request.hints)
        self.loading[sequence] = None

    def _settle(self, now_s: float) -> None:
        """Sequences whose prefix is there run."""
        for sequence in [one for one in self.loading if one.fetch is None or one.fetch.is_settled]:
            if self._had_no_pages(sequence):
                self._wait(sequence, now_s)
                self._is_tight = True
                continue
            tiers: tuple[TierName, ...] = ()
            if sequence.fetch is not None:
                sequence.pages, tiers = self.supply.collect(sequence.fetch)
                sequence.fetch = None
            sequence.num_committed = len(sequence.pages)
            sequence.num_computed = len(sequence.pages) * self._block_tokens
            self._count_hits(sequence, tiers)
            del self.loading[sequence]
            self.running[sequence] = None
            sequence.state = State.RUNNING

    def _had_no_pages(self, sequence: LiveSequence) -> bool:
        """Whether the store has more of the prefix than there were pages for, and others, who need not give way, will free some."""
        lease = None if sequence.fetch is None else sequence.fetch.lease
        if lease is None or lease.miss is not MissReason.CAPACITY:
            return False
        others = [one.level for one in self.active() if one is not sequence and one.holds_pages]
        return bool(others) and min(others) >= sequence.level

    def _count_hits(self, sequence: LiveSequence, tiers: tuple[TierName, ...]) -> None:
        self.num_copied_pages += sum(tier is not TierName.DEVICE for tier in tiers)
        if sequence.num_preemptions == 0 and sequence.choice == 0:
            sequence.request.cached_tiers = tiers
            sequence.request.cached_tokens = sequence.num_computed
            for tier in tiers:
                self.hit_tokens[tier] += self._block_tokens

    def _begin(self, sequence: LiveSequence, level: int, state: State) -> None:
        self._order += 1
        sequence.order, sequence.level, sequence.state = self._order, level, state

    def _serve(self, sequences: Iterable[LiveSequence], now_s: float) -> None:
        """A slice for each that has none, as far as pages and the budget of tokens go."""
        budget = self._max_batch_tokens - sum(piece.stop - piece.start for piece in self._slices.values())
        for sequence in sorted(sequences, key=lambda one: one.rank):
            if budget <= 0:
                return
            # Who went before may have taken the pages of this one.
            if sequence.state is not State.RUNNING or sequence in self._slices or not self._put_tail(sequence, now_s):
                continue
            stop = min(len(sequence.tokens), sequence.num_computed + budget)
            if self._grow(sequence, stop, now_s):
                self._slices[sequence] = Slice(sequence, sequence.num_computed, stop)
                budget -= stop - sequence.num_computed

    def _put_tail(self, sequence: LiveSequence, now_s: float) -> bool:
        """Puts a kept partial page behind the blocks that it followed, if they came back; False while there is no page for it."""
        tail = sequence.tail
        if tail is not None and tail.start == sequence.num_computed:
            if not self._grow(sequence, tail.stop, now_s):
                return False
            self.copies.restore(tail.content, sequence.pages[-1])
            sequence.num_computed = tail.stop
        sequence.tail = None
        return True

    def _grow(self, sequence: LiveSequence, num_tokens: int, now_s: float) -> bool:
        """Makes `pages` cover so many tokens, at the cost of who ranks behind; False when that has to wait."""
        missing = self.pages_for(num_tokens) - len(sequence.pages)
        if missing <= 0:
            return True
        while (pages := self.supply.take(missing)) is None:
            behind = [one for one in self.active() if one.rank > sequence.rank and one.holds_pages]
            if not self.supply.is_short or not behind:
                return False
            self._is_tight = True
            self.preempt(max(behind, key=lambda one: one.rank), now_s)
        sequence.pages += pages
        return True

    def _tail_of(self, sequence: LiveSequence) -> Tail | None:
        start, rest = divmod(sequence.num_computed, self._block_tokens)
        if not rest:
            return None
        start *= self._block_tokens
        return Tail(start, start + rest, self.copies.save(sequence.pages[sequence.num_computed // self._block_tokens]))

    def _let_go(self, sequence: LiveSequence) -> None:
        """A sequence's pages and what it has on its way go back."""
        self.running.pop(sequence, None)
        self.loading.pop(sequence, None)
        fetch, sequence.fetch = sequence.fetch, None
        pages, sequence.pages = sequence.pages, []
        sequence.num_computed = sequence.num_committed = 0
        if fetch is not None:
            self.supply.drop(fetch)
        self.supply.release(pages)

    def _watch(self, now_s: float) -> None:
        """Two engines on one pool may each wait for the pages of the other; the one whose patience ends first lets go."""
        if self._slices or not self.supply.is_short or not self.running:
            self._moved_at_s = now_s
        elif now_s - self._moved_at_s > STUCK_S:
            self._moved_at_s, self._look_at_s = now_s, now_s + PAUSE_S
            self.preempt(max(self.running, key=lambda one: one.rank), now_s)
