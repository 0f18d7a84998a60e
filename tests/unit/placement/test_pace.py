"""A rate over a sliding window."""

from tierkv.placement.pace import Pace


def test_nothing_is_known_before_the_first_sample():
    pace = Pace(window_s=60)
    assert pace.per_second(5.0, 100) == 0.0
    pace.note(5.0, 100)
    assert pace.per_second(5.0, 100) == 0.0
    assert pace.per_second(7.0, 130) == 15.0


def test_the_window_slides():
    pace = Pace(window_s=60)
    for second in range(0, 600, 6):  # 10 a second
        pace.note(second, second * 10)
    assert pace.per_second(600, 6_000) == 10.0
    for second in range(600, 720, 6):  # then 1 a second
        pace.note(second, 6_000 + (second - 600))
    assert pace.per_second(720, 6_120) == 1.0


def test_samples_are_bounded():
    pace = Pace(window_s=60)
    for tick in range(10_000):
        pace.note(tick * 0.01, tick)
    assert len(pace._samples) <= 14
    pace.note(1e6, 10_000)
    assert len(pace._samples) == 2, "the one before the window, and now"
