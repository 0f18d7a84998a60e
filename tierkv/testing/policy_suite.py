"""The contract suite of eviction policies: one test for each numbered sentence of `tierkv.policies.base.Policy`.

Subclass `PolicyContract`, supply `make`, and let pytest collect the subclass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tierkv.policies.base import Policy, Selection

# One test method serves several subclasses; that is what a contract suite is.
shared = settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors])

CAPACITY = 12


def weight_of(key: int, capacity: int = CAPACITY) -> int:
    """Between 1 and 5 by the key alone; every eleventh key is heavier than the capacity."""
    return capacity + 1 if key % 11 == 10 else 1 + key % 5


class PolicyDriver:
    """Drives a policy as a store does, and judges every answer by a dict of what must be resident."""

    def __init__(self, policy: Policy[int]) -> None:
        self.policy = policy
        self.resident: dict[int, int] = {}
        self.pins: set[int] = set()

    def select(self, key: int, weight: int) -> Selection[int]:
        """Selects victims and checks what the contract says of them; the key does not enter."""
        before = dict(self.resident)
        selection = self.policy.select_victims(key, weight, self.pins.__contains__)
        pinned_weight = sum(self.resident[pin] for pin in self.pins)
        assert selection.refused == (weight + pinned_weight > self.policy.capacity)
        assert not (selection.refused and selection.victims)
        assert len(set(selection.victims)) == len(selection.victims)
        for victim in selection.victims:
            assert victim in before and victim not in self.pins
            del self.resident[victim]
        if not selection.refused:
            assert sum(self.resident.values()) + weight <= self.policy.capacity
        self.check()
        return selection

    def access(self, key: int, weight: int) -> None:
        """A request for a key: a hit, or an insert where there is room."""
        if key in self.resident:
            self.policy.on_access(key)
        elif not self.select(key, weight).refused:
            self.policy.on_insert(key, weight)
            self.resident[key] = weight
        self.check()

    def remove(self, key: int) -> None:
        if key in self.resident:
            self.policy.on_remove(key)
            del self.resident[key]
            self.pins.discard(key)
        self.check()

    def toggle_pin(self, key: int) -> None:
        if key in self.pins:
            self.pins.remove(key)
        elif key in self.resident:
            self.pins.add(key)

    def check(self) -> None:
        """The policy and the dict agree, and the policy agrees with itself."""
        self.policy.check_integrity()
        order = list(self.policy)
        assert set(order) == set(self.resident) and len(order) == len(self.resident) == len(self.policy)
        assert self.policy.used == sum(self.resident.values()) <= self.policy.capacity
        assert all(key in self.policy for key in self.resident)


class PolicyContract(ABC):
    """Tests that every policy passes."""

    @abstractmethod
    def make(self, capacity: int) -> Policy[int]:
        """A fresh, empty policy."""

    def filled(self, *keys: int, capacity: int = 4) -> PolicyDriver:
        """A driver whose policy holds `keys`, of weight 1 each, inserted in order."""
        driver = PolicyDriver(self.make(capacity))
        for key in keys:
            driver.access(key, 1)
        return driver

    def test_starts_empty(self) -> None:
        policy = self.make(4)
        assert (policy.capacity, policy.used, len(policy), list(policy), 1 in policy) == (4, 0, 0, [], False)
        policy.check_integrity()

    def test_caller_1_a_selection_may_be_followed_by_nothing(self) -> None:
        driver = self.filled(1, 2, 3, 4)
        driver.select(5, 2)
        driver.select(5, 3)
        assert len(driver.resident) == 1
        driver.access(6, 1)
        driver.access(5, 1)
        assert 5 in driver.policy and 6 in driver.policy

    def test_1_no_victims_while_there_is_room(self) -> None:
        driver = self.filled(1, 2)
        assert driver.select(3, 2) == Selection()

    def test_1_victims_make_enough_room(self) -> None:
        driver = self.filled(1, 2, 3, 4)
        assert len(driver.select(5, 3).victims) == 3

    def test_1_victims_have_left_when_the_call_returns(self) -> None:
        driver = self.filled(1, 2, 3, 4)
        victims = driver.select(5, 1).victims
        assert [victim in driver.policy for victim in victims] == [False]
        assert driver.policy.used == 3

    def test_1_an_entry_as_heavy_as_the_capacity_takes_everything(self) -> None:
        driver = self.filled(1, 2, 3, 4)
        assert set(driver.select(5, 4).victims) == {1, 2, 3, 4}

    def test_2_refuses_an_entry_heavier_than_the_capacity(self) -> None:
        driver = self.filled(1, 2, 3, 4)
        order = list(driver.policy)
        assert driver.select(5, 5) == Selection(refused=True)
        assert list(driver.policy) == order

    def test_2_refuses_when_too_much_is_pinned_and_nobody_leaves(self) -> None:
        driver = self.filled(1, 2, 3, 4)
        driver.pins = {1, 3}
        order = list(driver.policy)
        assert driver.select(5, 3) == Selection(refused=True)
        assert list(driver.policy) == order
        assert set(driver.select(5, 2).victims) == {2, 4}

    def test_3_pinned_entries_are_skipped_and_keep_their_rank(self) -> None:
        driver = self.filled(1, 2, 3, 4)
        first, second, *_ = driver.policy
        driver.pins = {first}
        assert driver.select(5, 1).victims == (second,)
        driver.pins = set()
        assert next(iter(driver.policy)) == first

    def test_4_a_removed_key_is_forgotten_wholly(self) -> None:
        driver, fresh = self.filled(1, 2), self.filled(2)
        driver.remove(1)
        for key in (1, 3, 4, 5, 6):
            driver.access(key, 1)
            fresh.access(key, 1)
        assert list(driver.policy) == list(fresh.policy)

    def test_iteration_starts_with_the_next_victim(self) -> None:
        driver = self.filled(1, 2, 3, 4, 2, 3)
        expected = next(iter(driver.policy))
        assert driver.select(5, 1).victims == (expected,)

    @shared
    @given(
        st.lists(
            st.tuples(st.sampled_from(["access", "access", "access", "remove", "pin", "select"]), st.integers(0, 23)), max_size=120
        )
    )
    def test_5_any_sequence_of_events_keeps_every_invariant(self, events: list[tuple[str, int]]) -> None:
        """Capacity holds, pinned entries are never victims, refusals are exact, and integrity holds after each event."""
        driver = PolicyDriver(self.make(CAPACITY))
        for event, key in events:
            if event == "access":
                driver.access(key, weight_of(key))
            elif event == "remove":
                driver.remove(key)
            elif event == "pin":
                driver.toggle_pin(key)
            elif key not in driver.resident:
                driver.select(key, 2 * weight_of(key))

    @shared
    @given(st.lists(st.integers(0, 15), max_size=200), st.integers(1, 9))
    def test_5_two_policies_fed_alike_stay_alike(self, keys: list[int], capacity: int) -> None:
        """No clock and no randomness: the same events give the same order."""
        one, other = PolicyDriver(self.make(capacity)), PolicyDriver(self.make(capacity))
        for key in keys:
            one.access(key, 1)
            other.access(key, 1)
        assert list(one.policy) == list(other.policy)

    @shared
    @given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True), max_size=30))
    def test_a_batch_with_its_own_keys_pinned_never_evicts_itself(self, batches: list[list[int]]) -> None:
        """How a reserve call drives a policy: key after key, those just inserted pinned until the call ends."""
        driver = PolicyDriver(self.make(CAPACITY))
        for batch in batches:
            for key in batch:
                driver.access(key, weight_of(key))
                if key in driver.resident:
                    driver.pins.add(key)
            assert all(key in driver.policy for key in driver.pins)
            driver.pins.clear()
