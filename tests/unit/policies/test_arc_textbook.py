"""ARC with unit weights against figure 4 written down literally, on traces that Hypothesis finds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tierkv.policies import ArcPolicy


class TextbookArc:
    """Figure 4 of Megiddo & Modha, line by line, on plain lists with the most recent key last. Slow on purpose."""

    def __init__(self, c: int) -> None:
        self.c = c
        self.p = 0.0
        self.t1: list[int] = []
        self.t2: list[int] = []
        self.b1: list[int] = []
        self.b2: list[int] = []

    def request(self, x: int) -> bool:
        """One access; True for a hit."""
        if x in self.t1 or x in self.t2:  # case I
            (self.t1 if x in self.t1 else self.t2).remove(x)
            self.t2.append(x)
            return True
        if x in self.b1:  # case II
            self.p = min(float(self.c), self.p + max(len(self.b2) / len(self.b1), 1.0))
            self.replace(x)
            self.b1.remove(x)
            self.t2.append(x)
            return False
        if x in self.b2:  # case III
            self.p = max(0.0, self.p - max(len(self.b1) / len(self.b2), 1.0))
            self.replace(x)
            self.b2.remove(x)
            self.t2.append(x)
            return False
        if len(self.t1) + len(self.b1) == self.c:  # case IV A
            if len(self.t1) < self.c:
                self.b1.pop(0)
                self.replace(x)
            else:
                self.t1.pop(0)
        elif len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2) >= self.c:  # case IV B
            if len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2) == 2 * self.c:
                self.b2.pop(0)
            self.replace(x)
        self.t1.append(x)
        return False

    def replace(self, x: int) -> None:
        if self.t1 and ((x in self.b2 and len(self.t1) == self.p) or len(self.t1) > self.p):
            self.b1.append(self.t1.pop(0))
        else:
            self.b2.append(self.t2.pop(0))


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 8), st.lists(st.integers(0, 17), max_size=250), st.sampled_from([1, 3, 4096]))
def test_agrees_with_the_figure(c: int, keys: list[int], unit: int) -> None:
    """With every weight equal, whatever the unit, the policy is the figure; p is then in the same unit."""
    policy: ArcPolicy[int] = ArcPolicy(c * unit)
    textbook = TextbookArc(c)
    for key in keys:
        hit = key in policy
        if hit:
            policy.on_access(key)
        else:
            victims = policy.select_victims(key, unit, lambda _: False).victims
            resident_before = {*textbook.t1, *textbook.t2}
            policy.on_insert(key, unit)
        assert textbook.request(key) == hit
        if not hit:
            assert set(victims) == resident_before - {*textbook.t1, *textbook.t2}
        policy.check_integrity()
        state = policy.snapshot()
        lists = [list(reversed(keys)) for keys in (textbook.t1, textbook.t2, textbook.b1, textbook.b2)]
        assert [list(state.t1), list(state.t2), list(state.b1), list(state.b2)] == lists
        assert abs(state.p / unit - textbook.p) < 1e-6
