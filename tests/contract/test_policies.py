"""Every policy of the package passes the contract suite."""

from tierkv.policies import ArcPolicy, LruPolicy, Policy
from tierkv.testing.policy_suite import PolicyContract


class TestArcContract(PolicyContract):
    def make(self, capacity: int) -> Policy[int]:
        return ArcPolicy(capacity)


class TestLruContract(PolicyContract):
    def make(self, capacity: int) -> Policy[int]:
        return LruPolicy(capacity)
