"""The policy benchmark end to end, small: its figures are there and make sense of each other."""

from tierkv_bench import policy


def test_every_figure_is_measured():
    said = []
    costs = policy.measure(blocks=20, calls=60, say=said.append)
    assert (costs.blocks, costs.calls) == (20, 60)
    assert costs.policy_ratio == costs.policy_us / costs.daemon_cpu_us
    assert costs.policy_us > 0
    assert costs.trail_ratio > 0
    assert len(said) == 4
