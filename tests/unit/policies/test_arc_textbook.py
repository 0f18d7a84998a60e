"""ARC and its textbook twins, on events that Hypothesis finds and, where they are at hand, on real traces."""

import json
import lzma
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.policies.textbook import TextbookArc, TextbookByRequests
from tierkv.model.chains import Chains
from tierkv.policies import ArcPolicy, Cause, Rule

TRACES = os.environ.get("TIERKV_TRACES")
needs_traces = pytest.mark.skipif(not TRACES, reason="TIERKV_TRACES does not name a folder of request traces")


def assert_agrees_with_the_figure(c: int, keys: Sequence[int], unit: int) -> int:
    """Feeds both; returns the number of hits."""
    policy: ArcPolicy[int] = ArcPolicy(c * unit, rule=Rule.PAPER)
    textbook = TextbookArc(c)
    num_hits = 0
    for key in keys:
        before = {*textbook.t1, *textbook.t2}
        is_hit = textbook.request(key)
        num_hits += is_hit
        assert (key in policy) == is_hit
        if is_hit:
            policy.on_access((key,))
        else:
            admission = policy.admit((key,), (unit,), lambda _: False, cause=Cause.SAVE)
            assert admission.num_admitted == 1 and admission.shortfall is None
            assert set(admission.victims) == before - {*textbook.t1, *textbook.t2}
        state = policy.snapshot()
        lists = [tuple(reversed(entries)) for entries in (textbook.t1, textbook.t2, textbook.b1, textbook.b2)]
        assert [state.t1, state.t2, state.b1, state.b2] == lists
        assert abs(state.p / unit - textbook.p) < 1e-6
    policy.check_integrity()
    return num_hits


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 8), st.lists(st.integers(0, 17), max_size=250), st.sampled_from([1, 3, 4096]))
def test_the_rule_of_the_paper_agrees_with_the_figure(c: int, keys: list[int], unit: int) -> None:
    """With every weight equal, whatever the unit, the policy is the figure; p is then in the same unit."""
    assert_agrees_with_the_figure(c, keys, unit)


class Pair:
    """A policy and its twin for whole requests, fed alike and compared after each event."""

    def __init__(self, capacity: int, parents: dict[int, int | None], weights: dict[int, int], rule: Rule) -> None:
        self.chains: Chains[int] = Chains()
        self.policy: ArcPolicy[int] = ArcPolicy(capacity, self.chains, rule=rule)
        self.twin = TextbookByRequests(capacity, weights, by_age=rule is Rule.AGE)
        self.parents = parents
        self.num_hits = 0

    def request(self, chain: list[int], pins: set[int], cause: Cause, spent: int) -> None:
        num_held = next((idx for idx, key in enumerate(chain) if key not in self.policy), len(chain))
        assert num_held == next((idx for idx, key in enumerate(chain) if key not in self.twin.resident), len(chain))
        self.num_hits += num_held
        head, rest = chain[:num_held], chain[num_held:]
        fresh = rest[: next((idx for idx, key in enumerate(rest) if key in self.policy), len(rest))]
        if head and cause is not Cause.PREFETCH:
            self.policy.on_access(head)
            self.twin.access(head)
        if not fresh:
            return
        pinned, sizes = {*chain, *pins}, [self.twin.weights[key] for key in fresh]
        admission = self.policy.admit(fresh, sizes, pinned.__contains__, cause=cause, head=head, spent=spent)
        expected = self.twin.admit(fresh, pinned, cause=cause.value, head=head, spent=spent)
        assert (admission.num_admitted, list(admission.victims), admission.shortfall) == expected
        for key in fresh[: admission.num_admitted]:
            parent = self.parents[key]
            if parent is not None:
                self.chains.link(parent, key)
                if key not in self.twin.children[parent]:
                    self.twin.children[parent].append(key)

    def event(self, kind: str, chain: list[int], pins: set[int], amount: int) -> None:
        if kind in {"remove", "expire"}:
            keys = [key for key in chain if key in self.policy]
            if kind == "expire":
                in_events = 4 * amount if amount % 2 else None
                self.policy.expect(keys[amount // 2 :], in_events)
                self.twin.expect(keys[amount // 2 :], in_events)
            elif keys:
                self.policy.on_remove(keys[-1])
                self.twin.remove(keys[-1])
        elif kind == "room":
            assert list(self.policy.make_room(amount, pins.__contains__)) == self.twin.make_room(amount, pins)
        else:
            self.request(chain, pins, Cause(kind), spent=amount % 3)
        self.compare()

    def compare(self) -> None:
        state, twin = self.policy.snapshot(), self.twin
        lists = [tuple(reversed(entries)) for entries in (twin.t1, twin.t2, twin.ghosts_of("B1"), twin.ghosts_of("B2"))]
        assert [state.t1, state.t2, state.b1, state.b2] == lists
        assert (state.p, state.w) == (twin.p, twin.w)
        assert list(self.policy._waiting) == twin.furthest()


NUM_KEYS = 32
OFFSETS = st.lists(st.sampled_from([1, 1, 1, 1, 2, 4, NUM_KEYS]), min_size=NUM_KEYS, max_size=NUM_KEYS)
WEIGHTS = st.one_of(st.just([1] * NUM_KEYS), st.lists(st.sampled_from([1, 2, 3, 5, 33]), min_size=NUM_KEYS, max_size=NUM_KEYS))
KINDS = st.sampled_from(["save", "save", "save", "save", "load", "prefetch", "remove", "expire", "room"])
KEYS = st.integers(0, NUM_KEYS - 1)
EVENTS = st.lists(st.tuples(KINDS, KEYS, st.sets(KEYS, max_size=2), st.integers(0, 6)), max_size=80)


def chain_to(leaf: int, parents: dict[int, int | None]) -> list[int]:
    parent = parents[leaf]
    return [leaf] if parent is None else [*chain_to(parent, parents), leaf]


@settings(max_examples=250, deadline=None)
@given(st.sampled_from([Rule.AGE, Rule.AGE, Rule.SIZE]), st.integers(1, 32), OFFSETS, WEIGHTS, EVENTS)
def test_whole_requests_agree_with_the_description(
    rule: Rule, capacity: int, offsets: list[int], weights: list[int], events: list[tuple[str, int, set[int], int]]
) -> None:
    """Lists, p, w, victims in order and reasons are the same after each event."""
    parents = {key: key - offset if offset <= key else None for key, offset in enumerate(offsets)}
    pair = Pair(capacity, parents, dict(enumerate(weights)), rule)
    for kind, leaf, pins, amount in events:
        pair.event(kind, chain_to(leaf, parents), pins, amount)
    pair.policy.check_integrity()


def real_requests(name: str, num_requests: int) -> list[list[int]]:
    """Block ids of the first requests of a trace."""
    assert TRACES is not None
    with lzma.open(Path(TRACES) / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["hash_ids"] for line, _ in zip(lines, range(num_requests), strict=False)]


@needs_traces
def test_the_rule_of_the_paper_agrees_with_the_figure_on_a_real_trace() -> None:
    requests = real_requests("conversation.jsonl.xz", 2000)
    assert assert_agrees_with_the_figure(120, [key for request in requests for key in request], 1) > 0


@needs_traces
@pytest.mark.parametrize("rule", [Rule.AGE, Rule.SIZE])
def test_whole_requests_agree_with_the_description_on_a_real_trace(rule: Rule) -> None:
    requests = real_requests("conversation.jsonl.xz", 1200)
    parents: dict[int, int | None] = {}
    for request in requests:
        parents |= zip(request, [None, *request], strict=False)
    pair = Pair(120, parents, dict.fromkeys(parents, 1), rule)
    for request in requests:
        pair.request(request, set(), Cause.SAVE, spent=0)
        pair.compare()
    assert pair.num_hits > 0
