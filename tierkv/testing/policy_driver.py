"""Drives an eviction policy as a store does and judges every answer by what the contract says of it.

It keeps a dict of what must be resident, knows the tree of keys, and feeds each event to two policies, which must answer alike.
Nothing here is taken from a policy: who can leave and how much fits is worked out anew, the slow way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tierkv.model.chains import Chains
from tierkv.policies.base import Admission, Cause, Policy, Shortfall

MakePolicy = Callable[[int, Chains[int]], Policy[int]]


class PolicyDriver:
    """One policy and its twin, in a world of keys whose parents and weights are known.

    Raises AssertionError from every event after which the policy has broken its contract.
    """

    def __init__(
        self,
        make: MakePolicy,
        capacity: int,
        parents: Mapping[int, int | None],
        weights: Mapping[int, int],
        *,
        are_pins_closed: bool = True,
        forgets_links: bool = False,
    ) -> None:
        """are_pins_closed — ancestors of pinned keys count as pinned. forgets_links — what leaves is known nowhere else."""
        self.chains: Chains[int] = Chains()
        self.policy = make(capacity, self.chains)
        self.twin = make(capacity, self.chains)
        self.parents = parents
        self.weights = weights
        self.resident: dict[int, int] = {}
        self._attached: set[int] = set()
        """Resident keys whose parent is resident and must be as long as they are."""
        self.pins: set[int] = set()
        self._are_pins_closed = are_pins_closed
        self._forgets_links = forgets_links

    # -- events ----------------------------------------------------------------------------------------------------------

    def request(self, leaf: int, cause: Cause = Cause.SAVE, *, num_first: int | None = None) -> list[Admission[int]]:
        """A request for the chain that ends in `leaf`: an access to what is there, then the rest, in one admission or two.

        num_first — how many entries the first of two admissions asks for.
        """
        chain = self.chain(leaf)
        num_held = next((idx for idx, key in enumerate(chain) if key not in self.resident), len(chain))
        head, rest = chain[:num_held], chain[num_held:]
        # Where entries were removed from the middle, what comes after the gap is resident still.
        fresh = rest[: next((idx for idx, key in enumerate(rest) if key in self.resident), len(rest))]
        if head and cause is Cause.SAVE:
            self.access(head)
        admissions = self._admit_in_parts(head, fresh, cause, num_first) if fresh else []
        if head and cause is Cause.LOAD:  # a store makes room first, and touches what it found when it knows how much that is
            self.access(head)
        return admissions

    def _admit_in_parts(self, head: list[int], fresh: list[int], cause: Cause, num_first: int | None) -> list[Admission[int]]:
        first = fresh[:num_first]
        admissions = [self.admit(first, cause, head=head)]
        if len(first) < len(fresh) and admissions[0].shortfall is None:
            spent = sum(self.weights[key] for key in first)
            admissions.append(self.admit(fresh[len(first) :], cause, head=[*head, *first], spent=spent))
        return admissions

    def access(self, keys: Sequence[int]) -> None:
        self.policy.on_access(keys)
        self.twin.on_access(keys)
        self.check()

    def admit(self, keys: Sequence[int], cause: Cause, *, head: Sequence[int] = (), spent: int = 0) -> Admission[int]:
        """Admits keys of one chain; `head` and the keys themselves are pinned meanwhile."""
        weights = [self.weights[key] for key in keys]
        own = {*head, *keys}
        pinned = self.pinned() | own
        free, movable = self.policy.capacity - self.policy.used, self.movable_weight(pinned)
        admission = self.policy.admit(keys, weights, pinned.__contains__, cause=cause, head=head, spent=spent)
        assert admission == self.twin.admit(keys, weights, pinned.__contains__, cause=cause, head=head, spent=spent)
        self._judge_number(admission, weights, cause, free, movable)
        admitted = keys[: admission.num_admitted]
        needed = sum(weights[: len(admitted)]) - free
        self._judge_victims(admission.victims, pinned, needed=needed)
        self._let_go(admission.victims)
        for key in admitted:
            parent = self.parents[key]
            assert parent is None or parent in self.resident, f"{key} entered without its parent"
            self.resident[key] = self.weights[key]
            self._attached.update(child for child in self.chains.children(key) if child in self.resident)
            if parent is not None:
                self.chains.link(parent, key)
                self._attached.add(key)
        self.check()
        return admission

    def make_room(self, weight: int) -> tuple[int, ...]:
        pinned = self.pinned()
        movable = self.movable_weight(pinned)
        victims = self.policy.make_room(weight, pinned.__contains__)
        assert victims == self.twin.make_room(weight, pinned.__contains__)
        if movable < weight:
            assert not victims
        else:
            self._judge_victims(victims, pinned, needed=weight)
        self._let_go(victims)
        self.check()
        return victims

    def remove(self, key: int) -> None:
        if key in self.resident:
            self.policy.on_remove(key)
            self.twin.on_remove(key)
            self._attached.difference_update(self.chains.children(key))
            self._forget(key)
            self.pins.discard(key)
        self.check()

    def expire(self, keys: Sequence[int]) -> None:
        """`keys` — resident keys of one chain, head first."""
        self.policy.expect(keys, None)
        self.twin.expect(keys, None)
        order = list(self.policy)
        closure = {follower for key in keys for follower in self._group(key)}
        assert set(order[: len(closure)]) == closure, "expired entries are not the next to leave"
        assert [key for key in order if key in set(keys)] == list(reversed(keys))
        self.check()

    def toggle_pin(self, key: int) -> None:
        if key in self.pins:
            self.pins.remove(key)
        elif key in self.resident:
            self.pins.add(key)

    # -- the world -------------------------------------------------------------------------------------------------------

    def chain(self, leaf: int) -> list[int]:
        """The keys from the root of the tree to `leaf`."""
        found: list[int] = []
        at: int | None = leaf
        while at is not None:
            found.append(at)
            at = self.parents[at]
        return found[::-1]

    def pinned(self) -> set[int]:
        """Whom the policy is told to be pinned."""
        return {key for pin in self.pins for key in self.chain(pin)} if self._are_pins_closed else set(self.pins)

    def movable_weight(self, pinned: set[int]) -> int:
        """The weight of those who may leave: neither they nor what follows them is pinned."""
        return sum(weight for key, weight in self.resident.items() if pinned.isdisjoint(self._group(key)))

    def _group(self, key: int) -> set[int]:
        """A resident key and all that follow it through resident ones."""
        found = {key}
        for child in self.chains.children(key):
            if child in self.resident:
                found |= self._group(child)
        return found

    def _let_go(self, victims: Iterable[int]) -> None:
        for victim in victims:
            self._forget(victim)

    def _forget(self, key: int) -> None:
        del self.resident[key]
        self._attached.discard(key)
        parent = self.parents[key]
        if self._forgets_links and parent is not None:
            self.chains.unlink(parent, key)

    # -- judgements ------------------------------------------------------------------------------------------------------

    def _judge_number(self, admission: Admission[int], weights: Sequence[int], cause: Cause, free: int, movable: int) -> None:
        """Not more than fits, and less than that only because of a share."""
        num_admitted, shortfall = admission.num_admitted, admission.shortfall
        sums = [sum(weights[: idx + 1]) for idx in range(len(weights))]
        assert (shortfall is None) == (num_admitted == len(weights))
        assert num_admitted <= sum(total <= free + movable for total in sums)
        assert num_admitted >= sum(total <= free for total in sums), "there was room"
        if shortfall is Shortfall.PINNED:
            assert sums[num_admitted] > free + movable, "there could have been room"
        if shortfall is Shortfall.CAP:
            assert cause is Cause.SAVE

    def _judge_victims(self, victims: tuple[int, ...], pinned: set[int], *, needed: int) -> None:
        """`needed` — the weight that had to leave."""
        gone = set(victims)
        assert len(gone) == len(victims)
        assert gone <= set(self.resident) and not gone & pinned
        assert sum(self.resident[victim] for victim in victims) >= needed
        assert needed > 0 or not victims, "somebody left for nothing"
        places = {victim: place for place, victim in enumerate(victims)}
        for victim in victims:
            for follower in self._group(victim) - {victim}:
                assert follower in gone, f"{follower} was left behind by {victim}"
                assert places[follower] < places[victim], f"{victim} left before {follower}, which follows it"

    def check(self) -> None:
        """The policies and the dict agree, and the policies agree with themselves and with each other."""
        for policy in (self.policy, self.twin):
            policy.check_integrity()
        order = list(self.policy)
        assert order == list(self.twin)
        assert set(order) == set(self.resident) and len(order) == len(self.resident) == len(self.policy)
        assert self.policy.used == sum(self.resident.values()) <= self.policy.capacity
        assert all(self.parents[key] in self.resident for key in self._attached), "an orphan"
        assert all((key in self.policy) == (key in self.resident) for key in self.parents)
        state = self.policy.state()
        assert state == self.twin.state()
        assert state.t1_weight + state.t2_weight + state.waiting_weight == self.policy.used
