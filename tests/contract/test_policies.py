"""Every policy of the package passes the contract suite."""

from tierkv.model.chains import Chains
from tierkv.policies import ArcPolicy, LruPolicy, Policy, Rule
from tierkv.testing.policy_suite import PolicyContract


class TestArcByAgeContract(PolicyContract):
    def make(self, capacity: int, chains: Chains[int]) -> Policy[int]:
        return ArcPolicy(capacity, chains, rule=Rule.AGE)


class TestArcBySizeContract(PolicyContract):
    def make(self, capacity: int, chains: Chains[int]) -> Policy[int]:
        return ArcPolicy(capacity, chains, rule=Rule.SIZE)


class TestArcOfThePaperContract(PolicyContract):
    def make(self, capacity: int, chains: Chains[int]) -> Policy[int]:
        return ArcPolicy(capacity, chains, rule=Rule.PAPER)


class TestLruContract(PolicyContract):
    def make(self, capacity: int, chains: Chains[int]) -> Policy[int]:
        return LruPolicy(capacity, chains)
