"""ARC, the adaptive replacement cache (Megiddo & Modha, FAST 2003, figure 4), for KV blocks that come in chains.

T1 holds entries seen once, T2 entries seen again; B1 and B2 are the ghosts (keys only) of what left T1 and T2: a hit on a ghost in
B1 says that T1 was too small, one in B2 that T2 was. Three rules say whose oldest entry leaves:

- `age` (default): the one that has waited longer, T1's age counted 2^w times; a hit in B1 lowers w, one in B2 raises it. Where a
  finished conversation ages out of T2, whose size the paper's rule would defend.
- `size`: the paper's: T1's while T1 weighs more than its target p.
- `paper`: the same, with the ghosts trimmed as in the figure and no cap but the capacity. With unit weights and one key a request this is the
  figure, step by step (`tierkv.testing.arc_vectors`).

What the traffic of language models adds to all of them (decision 5 has the numbers): a request is one event for all its blocks and
touches its tail first, so that a chain is lost from its tail; a victim takes along what follows it; a request that meets a full
cache adds at most an eighth of it (at least one entry), the rest becomes ghosts; ghosts weigh at most twice the capacity, the
earliest go first.

Who is told when entries are wanted again (`expect`) keeps them apart, in a waiting room, and compares that with the ages of the others.

Weights: sizes are sums of weights, a ghost keeps the weight it had, a step is scaled by it. REPLACE is repeated until the new entries
fit. The figure trims ghosts before REPLACE, we do it when the entries are in; REPLACE moves an entry within T1 + B1 or within T2 + B2, so
that both orders drop the same ghost. The figure's "delete the oldest of T1, keep no ghost" is the case in which it is the one just made.

Invariants: no key in two lists; T1 + T2 <= c; ghosts <= 2c (`paper`: T1 + B1 <= c, all four <= 2c); 0 <= p <= c; -4 <= w <= 4.
Bad at: loops longer than the cache (like LRU).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

from tierkv.model.chains import Chains
from tierkv.policies.arc_books import W_LIMIT, ArcBooks, Rule
from tierkv.policies.base import Admission, Cause, Shortfall
from tierkv.policies.suffix import SuffixSelector, num_fitting

K = TypeVar("K", bound=Hashable)

_CAP_SHARE = 8
"""A request adds at most this part of a full cache."""
_W_STEP = 0.8


class ArcPolicy(ArcBooks[K]):
    """Weighted ARC; the contract is `tierkv.policies.base.Policy`.

    Every event costs O(1) a key; `admit` and `make_room` also for each pinned entry older than the last victim.
    """

    def __init__(self, capacity: int, chains: Chains[K] | None = None, *, rule: Rule = Rule.AGE) -> None:
        """capacity — the largest resident weight, at least 1; InvalidRequestError below. chains — who follows whom (None: nobody)."""
        super().__init__(capacity, rule)
        self._chains: Chains[K] = Chains() if chains is None else chains

    def __iter__(self) -> Iterator[K]:
        selector = self._collect(self.used, lambda key: False, after_b2=False)
        return iter(selector.victims)

    # -- events ----------------------------------------------------------------------------------------------------------

    def on_access(self, keys: Sequence[K]) -> None:
        self._now += 1
        t2 = self._t2
        for key in t2.missing(keys):
            t2.append(key, self._take_out(key)[0])
        t2.touch_all(reversed(keys))
        self._touched_at.update(dict.fromkeys(keys, self._now))
        self._let_in_overdue()

    def admit(
        self,
        keys: Sequence[K],
        weights: Sequence[int],
        is_pinned: Callable[[K], bool],
        *,
        cause: Cause,
        head: Sequence[K] = (),
        spent: int = 0,
    ) -> Admission[K]:
        num_wanted = self._num_wanted(weights, cause, spent)
        sizes = weights[:num_wanted]
        free = self.capacity - self.used
        needed = sum(sizes) - free
        is_access = cause is not Cause.PREFETCH
        self._now += is_access
        self._let_in_overdue()
        before = self._p, self._w, self._hits_b1, self._hits_b2
        after_b2 = self._learn(keys[:num_wanted], is_access=is_access)
        num_admitted = num_wanted
        victims: tuple[K, ...] = ()
        if needed > 0:
            selector = self._collect(needed, is_pinned, after_b2=after_b2)
            if selector.weight < needed:
                num_admitted = num_fitting(sizes, free + selector.weight)
                # Who stays outside has taught nothing.
                self._p, self._w, self._hits_b1, self._hits_b2 = before
                after_b2 = self._learn(keys[:num_admitted], is_access=is_access)
                selector = self._collect(sum(sizes[:num_admitted]) - free, is_pinned, after_b2=after_b2)
            victims = tuple(selector.victims)
        shortfall = Shortfall.PINNED if num_admitted < num_wanted else Shortfall.CAP if num_wanted < len(keys) else None
        outcome = Admission(num_admitted, victims, shortfall)
        self._apply(keys, weights, outcome, head, is_access=is_access)
        return outcome

    def make_room(self, weight: int, is_pinned: Callable[[K], bool]) -> tuple[K, ...]:
        selector = self._collect(weight, is_pinned, after_b2=False)
        if selector.weight < weight:
            return ()
        victims = tuple(selector.victims)
        self.let_go(victims)
        return victims

    # -- who comes in ----------------------------------------------------------------------------------------------------

    def _num_wanted(self, weights: Sequence[int], cause: Cause, spent: int) -> int:
        """How many leading entries one request may add: what fits without anybody leaving, or else its share of a full cache."""
        if cause is not Cause.SAVE:
            return len(weights)
        total = sum(weights)
        cap = self.capacity if self.rule is Rule.PAPER else max(1, self.capacity // _CAP_SHARE)
        allowed = max(self.capacity - self.used, cap - spent)
        if total <= allowed:
            return len(weights)
        # The first entry may be heavier than the share, not than the cache; a request adds something.
        return max(num_fitting(weights, allowed), int(spent == 0 and weights[0] <= self.capacity))

    def _learn(self, keys: Sequence[K], *, is_access: bool) -> bool:
        """Adapts to those of a request that come back as ghosts; returns whether the first of these left T2."""
        ghosts = [key for key in keys if key in self._ghosts]
        if is_access:
            for key in ghosts:
                self._adapt(key)
        return bool(ghosts) and ghosts[0] in self._ghosts.b2

    def _adapt(self, key: K) -> None:
        """A request came back for a ghost: the list it left was too small. Sizes are taken while it is still a ghost."""
        b1, b2 = self._ghosts.b1, self._ghosts.b2
        if key in b1:
            self._hits_b1 += 1
            step = max(1.0, b2.total / b1.total) * b1.weight(key)
            self._p = min(float(self.capacity), self._p + step)
            self._w = max(-W_LIMIT, self._w - _W_STEP * step / self.capacity)
        else:
            self._hits_b2 += 1
            step = max(1.0, b1.total / b2.total) * b2.weight(key)
            self._p = max(0.0, self._p - step)
            self._w = min(W_LIMIT, self._w + _W_STEP * step / self.capacity)

    def _apply(
        self, keys: Sequence[K], weights: Sequence[int], outcome: Admission[K], head: Sequence[K], *, is_access: bool
    ) -> None:
        num_admitted = outcome.num_admitted
        self._evict(outcome.victims)
        self._insert(keys[:num_admitted], weights, head, is_access=is_access)
        if outcome.shortfall is Shortfall.CAP:
            self._pass_by(keys[num_admitted:], weights[num_admitted:])
        self._trim_ghosts()  # when all is said: what is passed by may still be a ghost

    def _insert(self, keys: Sequence[K], weights: Sequence[int], head: Sequence[K], *, is_access: bool) -> None:
        """Takes entries in, tail first: ghosts into T2 (without an access: into the list they left), others into T1."""
        t1, t2, ghosts = self._t1, self._t2, self._ghosts
        used = t1.total, t2.total
        for idx in range(len(keys) - 1, -1, -1):
            key = keys[idx]
            to_t2 = False
            if key in ghosts:
                to_t2 = is_access or key in ghosts.b2
                ghosts.pop(key)
            (t2 if to_t2 else t1).append(key, weights[idx])
        self._touched_at.update(dict.fromkeys(keys, self._now))
        # A request accesses its head beside this; that of a prefetch has no access, yet must not leave before what came for it.
        if not is_access and keys:
            self._touched_at.update(dict.fromkeys(head, self._now))
        for entries, weight_before in ((t1, used[0]), (t2, used[1])):
            if entries.total > weight_before or (not is_access and keys):
                entries.touch_all([key for key in reversed(head) if key in entries])

    def _pass_by(self, keys: Sequence[K], weights: Sequence[int]) -> None:
        """What a request may not add counts as if it had been here and gone, tail first; what never fits does not."""
        for idx in range(len(keys) - 1, -1, -1):
            key = keys[idx]
            if weights[idx] > self.capacity:
                continue
            to_b2 = key in self._ghosts.b2
            if key in self._ghosts:
                self._ghosts.pop(key)
            self._ghosts.append(key, weights[idx], to_b2=to_b2)

    # -- who leaves ------------------------------------------------------------------------------------------------------

    def _collect(self, needed: int, is_pinned: Callable[[K], bool], *, after_b2: bool) -> SuffixSelector[K]:
        """Victims as repeated REPLACE takes them; where one list has only pinned entries left, the other gives.

        An entry that waits leaves before the one that REPLACE names when it will be idle for longer than that one probably will:
        for as long again as it has been.
        """
        selector = SuffixSelector(self._chains, self._touched_at, self._weight_of, is_pinned)
        from_t1, from_t2, from_waiting = iter(self._t1), iter(self._t2), iter(self._waiting)
        one, two, guest = next(from_t1, None), next(from_t2, None), next(from_waiting, None)
        t1_weight = self._t1.total
        factor = 2.0**self._w if self.rule is Rule.AGE else 1.0
        now, touched_at = self._now, self._touched_at
        while selector.weight < needed:
            idle_one = -1.0 if one is None else (now - touched_at[one]) * factor
            idle_two = -1.0 if two is None else now - touched_at[two]
            is_t1_first = one is not None and (
                two is None
                or (idle_one >= idle_two if self.rule is Rule.AGE else self._is_t1_too_large(t1_weight, after_b2=after_b2))
            )
            idle = idle_one if is_t1_first else idle_two
            if guest is not None and self._waiting.guest(guest).expected_at - now > idle:
                gone = selector.take(guest)
                guest = next(from_waiting, None)
            elif is_t1_first and one is not None:
                gone = selector.take(one)
                one = next(from_t1, None)
            elif two is not None:
                gone = selector.take(two)
                two = next(from_t2, None)
            else:
                break
            if self.rule is not Rule.AGE:
                t1_weight -= sum(self._t1.weight(key) for key in gone if key in self._t1)
        return selector

    def _is_t1_too_large(self, t1_weight: int, *, after_b2: bool) -> bool:
        return t1_weight > self._p or (after_b2 and t1_weight == self._p)

    def let_go(self, keys: Sequence[K]) -> None:
        self._evict(keys)
        self._trim_ghosts()

    def _evict(self, victims: Sequence[K]) -> None:
        for victim in victims:
            del self._touched_at[victim]
            weight, from_t2 = self._take_out(victim)
            self._ghosts.append(victim, weight, to_b2=from_t2)

    # -- led through what another one decided ----------------------------------------------------------------------------------

    def replay_admit(
        self, keys: Sequence[K], weights: Sequence[int], outcome: Admission[K], *, cause: Cause, head: Sequence[K] = ()
    ) -> None:
        is_access = cause is not Cause.PREFETCH
        self._now += is_access
        self._learn(keys[: outcome.num_admitted], is_access=is_access)
        self._apply(keys, weights, outcome, head, is_access=is_access)

    def resize(self, capacity: int) -> tuple[K, ...]:
        self.capacity = capacity
        self._p = min(self._p, float(capacity))
        victims = self.make_room(self.used - capacity, lambda _: False) if self.used > capacity else ()
        self._trim_ghosts()
        return victims
