"""Eviction policies: keys and weights in, victims out. One paper per file; the contract is `tierkv.policies.base`."""

from tierkv.policies.arc import ArcPolicy
from tierkv.policies.arc_books import ArcSnapshot, Rule
from tierkv.policies.base import Admission, Cause, Policy, PolicyState, Shortfall, Survivor
from tierkv.policies.image import PolicyImage, RestorablePolicy
from tierkv.policies.lru import LruPolicy

__all__ = [
    "Admission",
    "ArcPolicy",
    "ArcSnapshot",
    "Cause",
    "LruPolicy",
    "Policy",
    "PolicyImage",
    "PolicyState",
    "RestorablePolicy",
    "Rule",
    "Shortfall",
    "Survivor",
]
