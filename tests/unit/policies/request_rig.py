"""Drives an ArcPolicy with whole requests, as a store does, and shows its state."""

from collections.abc import Collection, Mapping, Sequence

from tierkv.model.chains import Chains
from tierkv.policies import Admission, ArcPolicy, ArcSnapshot, Cause, Rule

UNIT: Mapping[int, int] = {}


class Requests:
    """A policy and its chains, driven as a store does."""

    def __init__(self, capacity: int, *chains: Sequence[int], rule: Rule = Rule.AGE, weights: Mapping[int, int] = UNIT) -> None:
        """Requests for `chains` have been made; keys weigh 1 but for those in `weights`."""
        self.chains: Chains[int] = Chains()
        self.policy: ArcPolicy[int] = ArcPolicy(capacity, self.chains, rule=rule)
        self.weights = weights
        for chain in chains:
            self.ask(*chain)

    def ask(self, *chain: int, cause: Cause = Cause.SAVE, pins: Collection[int] = (), spent: int = 0) -> Admission[int] | None:
        """One request for a chain; None where all of it was there."""
        num_held = next((idx for idx, key in enumerate(chain) if key not in self.policy), len(chain))
        head, fresh = chain[:num_held], chain[num_held:]
        if head and cause is not Cause.PREFETCH:
            self.policy.on_access(head)
        if not fresh:
            return None
        weights = [self.weights.get(key, 1) for key in fresh]
        pinned = {*chain, *pins}
        admission = self.policy.admit(fresh, weights, pinned.__contains__, cause=cause, head=head, spent=spent)
        for idx in range(num_held, num_held + admission.num_admitted):
            if idx:
                self.chains.link(chain[idx - 1], chain[idx])
        self.policy.check_integrity()
        return admission

    def room(self, weight: int, pins: Collection[int] = ()) -> tuple[int, ...]:
        victims = self.policy.make_room(weight, pins.__contains__)
        self.policy.check_integrity()
        return victims

    def pass_time(self, num_requests: int) -> None:
        """Requests for something that is deleted at once; there must be room for it."""
        for _ in range(num_requests):
            self.ask(-1)
            self.policy.on_remove(-1)

    @property
    def state(self) -> ArcSnapshot[int]:
        return self.policy.snapshot()


def state(
    t1: tuple[int, ...] = (),
    t2: tuple[int, ...] = (),
    b1: tuple[int, ...] = (),
    b2: tuple[int, ...] = (),
    p: float = 0.0,
    w: float = 1.0,
) -> ArcSnapshot[int]:
    """Keys from most to least recent; p and w as they are in the beginning."""
    return ArcSnapshot(t1=t1, t2=t2, b1=b1, b2=b2, p=p, w=w)
