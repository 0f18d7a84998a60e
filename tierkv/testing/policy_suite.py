"""The contract suite of eviction policies: one test for each numbered sentence of `tierkv.policies.base.Policy`.

Subclass `PolicyContract`, supply `make`, and let pytest collect the subclass. What each event must not do is judged after every
one of them by `tierkv.testing.policy_driver`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tierkv.errors import InvalidRequestError
from tierkv.model.chains import Chains
from tierkv.policies.base import Admission, Cause, Policy, Shortfall
from tierkv.testing.policy_driver import MakePolicy, PolicyDriver

NUM_KEYS = 24
KEYS = st.integers(0, NUM_KEYS - 1)
# How far a key's parent lies before it: long chains with some branches, and a second root now and then.
OFFSETS = st.sampled_from([1, 1, 1, 2, 3, NUM_KEYS])


class PolicyMachine(RuleBasedStateMachine):
    """Random requests, pins, removals and hints over a random forest of keys; the driver judges each step."""

    make: MakePolicy

    @initialize(
        capacity=st.integers(4, 24),
        offsets=st.lists(OFFSETS, min_size=NUM_KEYS, max_size=NUM_KEYS),
        weights=st.lists(st.sampled_from([1, 1, 2, 3, 5, 25]), min_size=NUM_KEYS, max_size=NUM_KEYS),
        are_pins_closed=st.booleans(),
        forgets_links=st.booleans(),
    )
    def start(self, capacity: int, offsets: list[int], weights: list[int], *, are_pins_closed: bool, forgets_links: bool) -> None:
        """Weight 25 is heavier than every capacity."""
        parents = {key: key - offset if offset <= key else None for key, offset in enumerate(offsets)}
        self._driver = PolicyDriver(
            self.make,
            capacity,
            parents,
            dict(enumerate(weights)),
            are_pins_closed=are_pins_closed,
            forgets_links=forgets_links,
        )

    @rule(leaf=KEYS)
    def save(self, leaf: int) -> None:
        self._driver.request(leaf)

    @rule(leaf=KEYS, cause=st.sampled_from(Cause), num_first=st.integers(1, 4))
    def request_in_two_parts(self, leaf: int, cause: Cause, num_first: int) -> None:
        self._driver.request(leaf, cause, num_first=num_first)

    @rule(leaf=KEYS, cause=st.sampled_from([Cause.LOAD, Cause.PREFETCH]))
    def bring_up(self, leaf: int, cause: Cause) -> None:
        self._driver.request(leaf, cause)

    @rule(key=KEYS)
    def pin_or_unpin(self, key: int) -> None:
        self._driver.toggle_pin(key)

    @rule(key=KEYS)
    def remove(self, key: int) -> None:
        self._driver.remove(key)

    @rule(weight=st.integers(0, 26))
    def make_room(self, weight: int) -> None:
        self._driver.make_room(weight)

    @rule(leaf=KEYS, num_spared=st.integers(0, 3))
    def expire(self, leaf: int, num_spared: int) -> None:
        """The tail of a chain is not needed any more, its first blocks are."""
        self._driver.expire([key for key in self._driver.chain(leaf)[num_spared:] if key in self._driver.resident])


def driver_of(
    make: MakePolicy, capacity: int, chains: Sequence[Sequence[int]], heavy: dict[int, int] | None = None
) -> PolicyDriver:
    """A driver in whose world `chains` exist, with weights of 1 but for those in `heavy`."""
    parents: dict[int, int | None] = {}
    for chain in chains:
        parents |= dict(zip(chain, [None, *chain], strict=False))
    return PolicyDriver(make, capacity, parents, dict.fromkeys(parents, 1) | (heavy or {}))


class PolicyContract(ABC):
    """Tests that every policy passes."""

    @abstractmethod
    def make(self, capacity: int, chains: Chains[int]) -> Policy[int]:
        """A fresh, empty policy."""

    def full(self, *, others: Sequence[Sequence[int]] = (), heavy: dict[int, int] | None = None) -> PolicyDriver:
        """A driver whose policy of capacity 4 holds the unrelated keys 1 to 4, saved in order; `others` are known, not resident."""
        driver = driver_of(self.make, 4, [[1], [2], [3], [4], *others], heavy)
        for key in (1, 2, 3, 4):
            driver.request(key)
        return driver

    def test_starts_empty(self) -> None:
        policy = self.make(4, Chains())
        assert (policy.capacity, policy.used, len(policy), list(policy), 1 in policy) == (4, 0, 0, [], False)
        policy.check_integrity()

    def test_a_capacity_below_one_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError, match="capacity='0'"):
            self.make(0, Chains())

    def test_nobody_leaves_while_there_is_room(self) -> None:
        driver = driver_of(self.make, 4, [[1, 2, 3, 4]])
        assert driver.request(4) == [Admission(4)]

    def test_1_victims_have_left_when_the_call_returns(self) -> None:
        driver = self.full(others=[[5]])
        first = next(iter(driver.policy))
        assert driver.request(5) == [Admission(1, (first,))]
        assert (first in driver.policy, 5 in driver.policy, driver.policy.used) == (False, True, 4)

    def test_1_admits_the_longest_leading_run_that_fits(self) -> None:
        """Key 6 does not fit into what the pins leave; key 7 would, and stays outside: it comes after 6."""
        driver = self.full(others=[[5, 6, 7]], heavy={6: 2})
        driver.pins = {1, 2, 3}
        assert driver.request(7, Cause.LOAD) == [Admission(1, (4,), Shortfall.PINNED)]

    def test_1_an_entry_as_heavy_as_the_capacity_takes_everything(self) -> None:
        driver = self.full(others=[[5]], heavy={5: 4})
        [admission] = driver.request(5)
        assert (admission.num_admitted, set(admission.victims), admission.shortfall) == (1, {1, 2, 3, 4}, None)

    @pytest.mark.parametrize("cause", Cause)
    def test_2_nobody_leaves_for_an_entry_heavier_than_the_capacity(self, cause: Cause) -> None:
        driver = self.full(others=[[5]], heavy={5: 5})
        [admission] = driver.request(5, cause)
        assert (admission.num_admitted, admission.victims) == (0, ())
        assert list(driver.policy) == [1, 2, 3, 4]

    @pytest.mark.parametrize("cause", Cause)
    def test_2_nobody_leaves_when_too_much_is_pinned(self, cause: Cause) -> None:
        driver = self.full(others=[[5]], heavy={5: 3})
        driver.pins = {1, 3}
        assert driver.request(5, cause) == [Admission(0, (), Shortfall.PINNED)]
        assert list(driver.policy) == [1, 2, 3, 4]
        driver.pins = {1}
        assert set(driver.request(5, cause)[0].victims) == {2, 3, 4}

    def test_3_pinned_entries_are_skipped_and_keep_their_rank(self) -> None:
        driver = self.full(others=[[5]])
        first, second, *_ = driver.policy
        driver.pins = {first}
        assert driver.request(5) == [Admission(1, (second,))]
        driver.pins = set()
        assert next(iter(driver.policy)) == first

    @pytest.mark.parametrize("are_pins_closed", [True, False])
    def test_3_what_a_pinned_entry_follows_stays(self, are_pins_closed: bool) -> None:
        driver = PolicyDriver(
            self.make, 4, {1: None, 2: 1, 3: 2, 4: None, 5: None}, dict.fromkeys(range(1, 6), 1), are_pins_closed=are_pins_closed
        )
        driver.request(3)
        driver.request(4)
        driver.pins = {2}
        assert driver.make_room(2) == (3, 4)
        assert driver.make_room(1) == ()

    def test_4_an_entry_takes_along_all_that_follow_it(self) -> None:
        driver = driver_of(self.make, 8, [[1, 2, 3], [1, 4], [5]])
        for leaf in (3, 4, 5):
            driver.request(leaf)
        driver.expire([1])
        victims = driver.make_room(1)
        assert victims[-1] == 1 and set(victims) == {1, 2, 3, 4}
        assert list(driver.policy) == [5]

    def test_4_a_chain_is_lost_from_its_tail(self) -> None:
        driver = driver_of(self.make, 4, [[1, 2, 3, 4]])
        driver.request(4)
        assert [driver.make_room(1) for _ in range(2)] == [(4,), (3,)]
        driver.access([1, 2])
        assert [driver.make_room(1) for _ in range(2)] == [(2,), (1,)]

    @pytest.mark.parametrize("cause", Cause)
    def test_a_head_stays_more_recent_than_what_is_added_to_it(self, cause: Cause) -> None:
        driver = driver_of(self.make, 6, [[1, 2, 3, 4], [5], [6]])
        for leaf in (2, 5, 6):
            driver.request(leaf)
        driver.request(4, cause)
        assert [key for key in driver.policy if key <= 4] == [4, 3, 2, 1]

    def test_5_a_removed_key_is_forgotten_wholly(self) -> None:
        keys = [[key] for key in range(1, 7)]
        driver, fresh = driver_of(self.make, 4, keys), driver_of(self.make, 4, keys)
        for key in (1, 2):
            driver.request(key)
        driver.remove(1)
        fresh.request(2)
        for key in (1, 3, 4, 5, 6):
            assert driver.request(key) == fresh.request(key)
        assert list(driver.policy) == list(fresh.policy)
        assert replace(driver.policy.state(), events=0) == replace(fresh.policy.state(), events=0)

    def test_expired_entries_leave_first_the_last_of_them_before_the_others(self) -> None:
        driver = self.full()
        driver.access([4])
        driver.expire([3, 4])
        assert driver.make_room(2) == (4, 3)

    def test_expired_entries_that_are_used_again_are_as_good_as_any(self) -> None:
        driver = self.full()
        driver.expire([3])
        driver.access([3])
        assert set(driver.make_room(3)) == {1, 2, 4}

    def test_make_room_lets_nobody_leave_for_more_than_it_can_reach(self) -> None:
        driver = self.full()
        driver.pins = {2}
        assert driver.make_room(4) == ()
        assert set(driver.make_room(3)) == {1, 3, 4}

    def test_6_any_sequence_of_events_keeps_every_promise(self) -> None:
        class Machine(PolicyMachine):
            make = staticmethod(self.make)

        run_state_machine_as_test(Machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))
