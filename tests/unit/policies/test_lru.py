"""LRU: whole state after each step, and the naive list it must agree with."""

from hypothesis import given
from hypothesis import strategies as st

from tierkv.model.chains import Chains
from tierkv.policies import Admission, Cause, LruPolicy, Shortfall


def nothing_pinned(_: int) -> bool:
    return False


def test_the_oldest_entries_leave_first_until_the_new_one_fits() -> None:
    policy: LruPolicy[int] = LruPolicy(10)
    assert policy.admit((1,), (4,), nothing_pinned, cause=Cause.SAVE) == Admission(1)
    assert policy.admit((2, 3), (3, 3), nothing_pinned, cause=Cause.SAVE) == Admission(2)
    assert list(policy) == [1, 3, 2]
    policy.on_access((1,))
    assert list(policy) == [3, 2, 1]
    assert policy.admit((4,), (5,), nothing_pinned, cause=Cause.SAVE) == Admission(1, (3, 2))
    assert (list(policy), policy.used) == ([1, 4], 9)


def test_a_request_is_lost_from_its_tail() -> None:
    policy: LruPolicy[int] = LruPolicy(4)
    policy.admit((1, 2), (1, 1), nothing_pinned, cause=Cause.SAVE)
    policy.admit((5,), (1,), nothing_pinned, cause=Cause.SAVE)
    policy.on_access((1, 2))
    policy.admit((3,), (1,), {1, 2, 3}.__contains__, cause=Cause.SAVE, head=(1, 2))
    assert list(policy) == [5, 3, 2, 1]


def test_a_request_is_not_capped() -> None:
    policy: LruPolicy[int] = LruPolicy(4)
    for key in range(4):
        policy.admit((key,), (1,), nothing_pinned, cause=Cause.SAVE)
    assert policy.admit((10, 11, 12), (1, 1, 1), nothing_pinned, cause=Cause.SAVE, spent=4) == Admission(3, (0, 1, 2))
    assert list(policy) == [3, 12, 11, 10]


def test_pins_are_asked_about_from_the_oldest_and_no_further_than_needed() -> None:
    policy: LruPolicy[int] = LruPolicy(3)
    for key in (1, 2, 3):
        policy.admit((key,), (1,), nothing_pinned, cause=Cause.SAVE)
    asked: list[int] = []

    def is_pinned(key: int) -> bool:
        asked.append(key)
        return key == 1

    policy.admit((4,), (1,), is_pinned, cause=Cause.SAVE)
    assert asked == [1, 2]


def test_the_order_shows_followers_before_the_key_they_leave_with() -> None:
    chains: Chains[int] = Chains()
    policy: LruPolicy[int] = LruPolicy(4, chains)
    policy.admit((1, 2), (1, 1), nothing_pinned, cause=Cause.SAVE)
    policy.admit((3,), (1,), nothing_pinned, cause=Cause.SAVE)
    chains.link(1, 2)
    policy.expect((1,), None)
    assert list(policy) == [2, 1, 3]
    assert policy.make_room(1, nothing_pinned) == (2, 1)


class NaiveLru:
    """A list of (key, weight), oldest first, and each key's parent. Every question is answered by searching."""

    def __init__(self, capacity: int, parents: dict[int, int | None]) -> None:
        self.capacity = capacity
        self.parents = parents
        self.entries: list[tuple[int, int]] = []

    def touch(self, keys: list[int]) -> None:
        for key in reversed(keys):
            [found] = [entry for entry in self.entries if entry[0] == key]
            self.entries.remove(found)
            self.entries.append(found)

    def is_before(self, key: int, other: int | None) -> bool:
        """Whether `key` is `other` or above it."""
        return other is not None and (key == other or self.is_before(key, self.parents[other]))

    def request(self, chain: list[int], weights: dict[int, int], pins: set[int]) -> tuple[int, set[int]]:
        """How many of a chain were admitted, and who left. Everything resident hangs together here: nothing is ever removed."""
        held = [key for key in chain if key in [entry[0] for entry in self.entries]]
        self.touch(held)
        fresh, stays = chain[len(held) :], {*chain, *pins}
        kept = list(self.entries)
        candidates = [entry[0] for entry in kept if not any(self.is_before(entry[0], key) for key in stays & {e[0] for e in kept})]
        room = self.capacity - sum(entry[1] for entry in kept if entry[0] not in candidates)
        while sum(weights[key] for key in fresh) > room:
            fresh = fresh[:-1]
        for candidate in candidates:
            if sum(entry[1] for entry in kept) + sum(weights[key] for key in fresh) > self.capacity:
                kept = [entry for entry in kept if not self.is_before(candidate, entry[0])]
        victims = {entry[0] for entry in self.entries} - {entry[0] for entry in kept}
        self.entries = kept + [(key, weights[key]) for key in reversed(fresh)]
        self.touch(held if fresh else [])
        return len(fresh), victims


OFFSETS = st.lists(st.sampled_from([1, 1, 1, 2, 16]), min_size=16, max_size=16)
REQUESTS = st.lists(st.tuples(st.integers(0, 15), st.sets(st.integers(0, 15), max_size=3)), max_size=80)


@given(st.integers(1, 20), OFFSETS, REQUESTS)
def test_agrees_with_a_naive_list(capacity: int, offsets: list[int], requests: list[tuple[int, set[int]]]) -> None:
    parents = {key: key - offset if offset <= key else None for key, offset in enumerate(offsets)}
    weights = {key: 1 + key % 4 for key in parents}
    chains: Chains[int] = Chains()
    policy: LruPolicy[int] = LruPolicy(capacity, chains)
    naive = NaiveLru(capacity, parents)
    for leaf, pins in requests:
        chain = [leaf]
        while (parent := parents[chain[0]]) is not None:
            chain.insert(0, parent)
        expected = naive.request(chain, weights, pins)
        held = [key for key in chain if key in policy]
        policy.on_access(held)
        fresh = chain[len(held) :]
        if fresh:
            own = {*chain, *pins}
            admission = policy.admit(fresh, [weights[key] for key in fresh], own.__contains__, cause=Cause.SAVE, head=held)
            assert (admission.num_admitted, set(admission.victims)) == expected
            assert admission.shortfall == (None if expected[0] == len(fresh) else Shortfall.PINNED)
            for key in fresh[: admission.num_admitted]:
                if (above := parents[key]) is not None:
                    chains.link(above, key)
        policy.check_integrity()
        assert list(policy._resident) == [entry[0] for entry in naive.entries]
