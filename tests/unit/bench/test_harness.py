"""The harness takes turns, leaves warm-up out, and its ratios cancel what hits subject and reference alike."""

import numpy as np
import pytest

from tierkv_bench.harness import Timing, patterned, run_interleaved, speed_gbps, speed_ratio, warm_buffers


def recorded(calls, name, elapsed_s):
    def case():
        calls.append(name)
        return elapsed_s

    return case


def test_cases_take_turns_and_warmup_does_not_count():
    calls = []
    times = iter([100.0, 1.0, 2.0, 3.0])
    timings = run_interleaved({"a": lambda: next(times), "b": recorded(calls, "b", 5.0)}, rounds=3, warmup_rounds=1)
    assert timings == {"a": Timing((1.0, 2.0, 3.0)), "b": Timing((5.0, 5.0, 5.0))}
    assert calls == ["b"] * 4


def test_every_case_leads_a_round_unless_the_order_is_fixed():
    calls = []
    cases = {name: recorded(calls, name, 1.0) for name in "abc"}
    run_interleaved(cases, rounds=3, warmup_rounds=0)
    assert "".join(calls) == "abc" + "bca" + "cab"
    calls.clear()
    run_interleaved(cases, rounds=2, warmup_rounds=0, rotate=False)
    assert "".join(calls) == "abcabc"


@pytest.mark.parametrize(("cases", "rounds"), [({}, 1), ({"a": lambda: 1.0}, 0)])
def test_nothing_to_measure_is_refused(cases, rounds):
    with pytest.raises(ValueError, match="a case and a round"):
        run_interleaved(cases, rounds=rounds)


def test_percentiles_are_of_the_counted_rounds():
    timing = Timing(tuple(float(n) for n in range(1, 102)))
    assert timing.median_s == 51.0
    assert timing.percentile_s(99) == 100.0


def test_a_slow_minute_that_hits_both_does_not_move_the_ratio():
    reference = Timing((1.0, 10.0, 1.0))
    subject = Timing((2.0, 20.0, 2.0))
    assert speed_ratio(subject, reference) == 0.5
    assert speed_gbps(3_000_000_000, 2.0) == 1.5


def test_contents_depend_on_the_seed_only():
    assert np.array_equal(patterned(64, 7), patterned(64, 7))
    assert not np.array_equal(patterned(64, 7), patterned(64, 8))


def test_buffers_are_disjoint_parts_of_warm_memory():
    buffers = warm_buffers(3, 5)
    for idx, buffer in enumerate(buffers):
        buffer[:] = idx
    assert [buffer.tolist() for buffer in buffers] == [[0] * 5, [1] * 5, [2] * 5]
