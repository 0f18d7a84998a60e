"""The scheduler under a virtual clock, with a model that notices every wrong page."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engine.engine_rig import LAYOUT, Rig, State, text_alone
from tests.unit.engine.fake_daemon import FakeDaemon
from tierkv.engine.sequence import FinishReason
from tierkv.model.outcomes import MissReason


def test_one_request_alone():
    rig = Rig()
    request = rig.add(range(10), 6)
    rig.run()
    assert rig.text(request) == text_alone(range(10), 6)
    assert rig.reason(request) is FinishReason.LENGTH
    assert rig.store.num_held == 0


def test_a_prompt_is_computed_in_chunks_and_decodes_go_first():
    rig = Rig(max_batch_tokens=8)
    rig.add(range(2), 8)
    rig.step()
    rig.add(range(20, 40), 2)
    rig.step()
    rig.step()
    rig.step()
    assert rig.model.batches == [[(0, 2)], [(2, 1), (0, 7)], [(3, 1), (7, 7)], [(4, 1), (14, 6)]]


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_everybody_gets_the_text_he_would_get_alone(data):
    rig = Rig(
        num_pages=data.draw(st.integers(3, 12)),
        max_batch_tokens=data.draw(st.integers(4, 16)),
        max_sequences=data.draw(st.integers(1, 4)),
        reserve_pages=data.draw(st.integers(0, 2)),
        ageing_s=data.draw(st.sampled_from([0.05, 1.0, 30.0])),
        is_slow=data.draw(st.booleans()),
    )
    ended = set()
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["add", "add", "step", "step", "step", "cancel", "pause", "carry"]))
        if action == "add":
            start = data.draw(st.sampled_from([0, 0, 1, 30]))
            length = data.draw(st.integers(1, 12))
            rig.add(
                range(start, start + length),
                data.draw(st.integers(1, 12)),
                n=data.draw(st.sampled_from([1, 1, 1, 2, 3])),
                tenant=data.draw(st.sampled_from("ab")),
                priority=data.draw(st.sampled_from([0, 0, 1])),
                deadline_s=data.draw(st.sampled_from([None, None, None, 0.03])),
            )
        elif action == "cancel" and rig.requests:
            request = data.draw(st.sampled_from(rig.requests))
            rig.runner.end(request, FinishReason.CANCELLED)
            rig.check()
            ended.add(request)
        elif action == "pause":
            rig.clock.advance(0.05)
        elif action == "carry":
            rig.carry()
        else:
            rig.step()
    rig.run()
    for _ in range(2):  # what arrives for nobody goes back with the next batch
        rig.supply.flush()
        rig.carry()
        rig.supply.poll(rig.clock.monotonic_s())
    for request in rig.requests:
        for choice in range(request.params.n):
            text = rig.text(request, choice)
            assert text == text_alone(request.prompt, len(text))
            if rig.reason(request, choice) is FinishReason.LENGTH:
                sequence = request.choices[choice]
                assert len(sequence.tokens) == sequence.length_limit
            else:
                assert request in ended or rig.reason(request, choice) is FinishReason.DEADLINE
    assert rig.store.num_held == rig.supply.num_stocked
    assert not rig.scheduler.running and not rig.scheduler.loading and not rig.scheduler.waiting


def test_a_preempted_sequence_goes_on_without_computing_anything_twice():
    rig = Rig(num_pages=10, max_batch_tokens=16)
    first, second = rig.add(range(10), 14), rig.add(range(50, 60), 14)
    rig.run()
    assert rig.text(first) == text_alone(range(10), 14)
    assert rig.text(second) == text_alone(range(50, 60), 14)
    assert rig.scheduler.num_preemptions == 1
    assert first.choices[0].num_preemptions == 0
    # Its blocks lay in the store when its turn came, and a copy of the partial one beside it; the last token drawn has no KV.
    assert rig.model.computed == 2 * (10 + 14 - 1)


def test_what_the_store_let_go_is_computed_again():
    rig = Rig(num_pages=8, max_batch_tokens=16)
    first, second = rig.add(range(10), 14), rig.add(range(50, 60), 14)
    while not rig.scheduler.num_preemptions:
        rig.step()
    while first.choices[0].state is State.RUNNING:
        rig.step()
    # Somebody takes every page that nobody holds, and gives them back.
    rig.supply.release(rig.supply.take(rig.store.num_available - 1) or [])
    rig.run()
    assert rig.text(second) == text_alone(range(50, 60), 14)
    assert rig.model.computed > 2 * (10 + 14 - 1)


def test_a_later_request_finds_the_prompt_and_what_was_generated():
    rig = Rig(num_pages=16)
    first = rig.add(range(10), 7)
    rig.run()
    conversation = [*range(10), *rig.text(first), 5, 6]
    before = rig.model.computed
    second = rig.add(conversation, 3)
    rig.run()
    assert rig.text(second) == text_alone(conversation, 3)
    assert second.cached_tokens == 16 and len(second.cached_tiers) == 4
    assert rig.model.computed - before == len(conversation) - 16 + 2
    assert rig.scheduler.hit_tokens == {"device": 16}


def test_the_last_token_of_a_prompt_that_is_held_is_computed():
    rig = Rig()
    rig.add(range(8), 2)
    rig.run()
    again = rig.add(range(8), 2)
    rig.run()
    assert again.cached_tokens == 4
    assert rig.text(again) == text_alone(range(8), 2)


@pytest.mark.parametrize("length", [3, 8, 10])
def test_choices_share_the_pages_of_the_prompt(length):
    rig = Rig(num_pages=32, max_batch_tokens=16)
    request = rig.add(range(length), 6, n=3)
    rig.step()
    rig.step()
    full = length // 4
    tables = [sequence.pages for sequence in request.choices]
    assert all(table[:full] == tables[0][:full] for table in tables)
    assert len({page for table in tables for page in table}) == full + sum(len(table) - full for table in tables)
    rig.run()
    assert [rig.text(request, choice) for choice in range(3)] == [text_alone(range(length), 6)] * 3
    assert rig.model.computed == length + 3 * 5


def test_choices_beyond_the_room_wait_and_are_not_computed_twice():
    rig = Rig(num_pages=32, max_sequences=2)
    request = rig.add(range(6), 6, n=4)
    rig.run()
    assert [rig.text(request, choice) for choice in range(4)] == [text_alone(range(6), 6)] * 4
    assert rig.model.computed == 6 + 4 * 5


def test_a_higher_class_goes_first_and_takes_pages():
    rig = Rig(num_pages=6, max_batch_tokens=16)
    low = rig.add(range(10), 12)
    rig.step()
    high = rig.add(range(50, 60), 12, priority=1)
    order = []
    while not all(request.is_finished for request in rig.requests):
        rig.step()
        order += [request for request in rig.requests if request.is_finished and request not in order]
    assert order == [high, low]
    assert rig.text(low) == text_alone(range(10), 12) and rig.text(high) == text_alone(range(50, 60), 12)
    assert low.choices[0].num_preemptions == 1


def test_a_higher_class_takes_a_place():
    rig = Rig(num_pages=32, max_sequences=1)
    low, high = rig.add(range(4), 20), None
    rig.step()
    high = rig.add(range(50, 54), 3, priority=1)
    for _ in range(3):
        rig.step()
    assert high.is_finished and not low.is_finished
    rig.run()
    assert rig.text(low) == text_alone(range(4), 20)


def test_tenants_take_turns():
    rig = Rig(num_pages=32, max_sequences=1)
    for idx in range(6):
        rig.add([idx, 90], 4, tenant="many")
    for idx in range(3):
        rig.add([idx, 91], 4, tenant="few")
    order = []
    while len(order) < 9:
        rig.step()
        order += [request for request in rig.requests if request.is_finished and request not in order]
    assert [request.tenant for request in order] == ["many", "few"] * 3 + ["many"] * 3


def test_a_tenant_that_was_idle_has_saved_up_nothing():
    rig = Rig(num_pages=32, max_sequences=1)
    for idx in range(6):
        rig.add([idx, 90], 4, tenant="busy")
    for _ in range(17):
        rig.step()
    for idx in range(6):
        rig.add([idx, 91], 4, tenant="new")
    rig.run()
    finished = sorted(rig.requests, key=lambda request: request.choices[0].order)
    assert [request.tenant for request in finished] == ["busy"] * 5 + ["new", "busy"] + ["new"] * 5


def test_who_waits_long_enough_is_served():
    rig = Rig(num_pages=32, max_sequences=1, ageing_s=1.0)
    old = rig.add(range(4), 3)
    served = []
    for idx in range(200):
        rig.add([idx % 90, 90], 3, priority=1)
        rig.step()
        rig.step()
        served.append(old.is_finished)
    assert any(served), "newcomers of a higher class starve it"
    rig.run()


def test_a_deadline_ends_who_runs_and_who_waits():
    rig = Rig(max_sequences=1)
    running, waiting = rig.add(range(4), 40, deadline_s=0.095), rig.add(range(4), 40, deadline_s=0.05)
    rig.run()
    assert rig.reason(running) is rig.reason(waiting) is FinishReason.DEADLINE
    assert rig.text(running) == text_alone(range(4), 10) and rig.text(waiting) == []
    assert rig.store.num_held == 0


def test_a_cancelled_request_gives_its_pages_back_at_once():
    rig = Rig(max_sequences=1)
    running, waiting = rig.add(range(4), 40), rig.add(range(4), 40)
    rig.step()
    assert rig.store.num_held
    rig.runner.end(running, FinishReason.CANCELLED)
    rig.runner.end(waiting, FinishReason.CANCELLED)
    assert rig.store.num_held == 0
    assert not rig.step()


def test_only_the_request_that_makes_a_step_fail_ends_with_an_error(caplog):
    rig = Rig(num_pages=32, max_batch_tokens=32)
    good, bad, other = rig.add(range(5), 5), rig.add([7, 96, 8], 5), rig.add(range(20, 25), 5)
    rig.model.poison = {96}
    rig.run()
    assert rig.reason(bad) is FinishReason.ERROR and rig.text(bad) == []
    assert rig.text(good) == text_alone(range(5), 5) and rig.text(other) == text_alone(range(20, 25), 5)
    assert "RuntimeError: poison" in caplog.text
    assert rig.runner.counters["finished_error"] == 1


def test_a_stop_token_ends_a_text_and_ignore_eos_lets_it_go_on():
    prompt = list(range(6))
    text = text_alone(prompt, 8)
    rig = Rig(num_pages=32)
    rig.runner._eos_token_ids = frozenset({text[4]})
    by_eos, by_own = rig.add(prompt, 8), rig.add(prompt, 8, params={"stop_token_ids": (text[2],)})
    ignoring = rig.add(prompt, 8, params={"ignore_eos": True})
    rig.run()
    assert rig.text(by_eos) == text[:5] and rig.reason(by_eos) is FinishReason.STOP
    assert rig.text(by_own) == text[:3] and rig.reason(by_own) is FinishReason.STOP
    assert rig.text(ignoring) == text and rig.reason(ignoring) is FinishReason.LENGTH


def test_a_sequence_may_fill_the_pool_to_its_last_token():
    rig = Rig(num_pages=3)
    request = rig.add(range(5), 40)
    rig.run()
    # Room for 12 tokens, and the last one drawn needs none.
    assert len(request.prompt) + len(rig.text(request)) == 13
    assert rig.text(request) == text_alone(range(5), 8)


def test_pages_on_their_way_leave_a_sequence_loading_while_others_run():
    store = FakeDaemon(16 * LAYOUT.block_bytes)
    rig = Rig(store=store)
    rig.add(range(9), 2)
    rig.run()
    store.is_pending = True
    loading = rig.add(range(9), 3)
    store.is_pending, other = True, rig.add([50, 51], 4)
    rig.step()
    assert loading.choices[0].state is State.LOADING
    for _ in range(3):
        rig.step()
    assert other.is_finished and loading.choices[0].state is State.LOADING
    store.leases[0].settle(1)
    rig.run()
    assert rig.text(loading) == text_alone(range(9), 3)
    assert loading.cached_tokens == 4 and loading.cached_tiers == ("host",)
    assert rig.scheduler.num_copied_pages == 1


def test_who_found_no_pages_for_what_is_held_waits_for_them_and_computes_nothing_twice():
    store = FakeDaemon(16 * LAYOUT.block_bytes)
    rig = Rig(store=store)
    rig.add(range(9), 2)
    rig.run()
    other = rig.add([50, 51], 6)
    rig.step()
    store.is_pending = True
    loading = rig.add(range(9), 3)
    rig.step()
    (lease,) = store.leases
    lease.miss = MissReason.CAPACITY
    lease.settle(0)
    rig.step()
    assert loading.choices[0].state is State.WAITING and not other.is_finished
    store.is_pending = False
    while not other.is_finished:
        rig.step()
        assert other.is_finished or loading.choices[0].state is State.WAITING
    rig.run()
    assert loading.cached_tokens == 8
    assert rig.text(loading) == text_alone(range(9), 3)


def test_who_found_no_pages_and_is_alone_computes():
    store = FakeDaemon(16 * LAYOUT.block_bytes)
    rig = Rig(store=store)
    rig.add(range(9), 2)
    rig.run()
    store.is_pending = True
    loading = rig.add(range(9), 3)
    rig.step()
    store.leases[0].miss = MissReason.CAPACITY
    store.leases[0].settle(1)
    rig.run()
    assert rig.text(loading) == text_alone(range(9), 3)
    assert loading.cached_tokens == 4


def test_who_is_cancelled_while_loading_holds_nothing():
    store = FakeDaemon(16 * LAYOUT.block_bytes)
    rig = Rig(store=store)
    rig.add(range(9), 2)
    rig.run()
    store.is_pending = True
    loading = rig.add(range(9), 3)
    rig.step()
    assert store.inner.num_held == 2
    rig.runner.end(loading, FinishReason.CANCELLED)
    assert store.inner.num_held == 0
    rig.check()


def test_two_engines_that_wait_for_each_other_do_not_wait_for_ever():
    store = FakeDaemon(8 * LAYOUT.block_bytes)
    rigs = [Rig(store=store, max_batch_tokens=16), Rig(store=store, max_batch_tokens=16)]
    requests = [rig.add(range(start, start + 10), 16) for rig, start in zip(rigs, (0, 50), strict=True)]
    for _ in range(600):
        for rig in rigs:
            rig.step()
    assert all(request.is_finished for request in requests)
    assert rigs[0].text(requests[0]) == text_alone(range(10), 16)
    assert rigs[1].text(requests[1]) == text_alone(range(50, 60), 16)
