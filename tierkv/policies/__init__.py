"""Eviction policies: keys and weights in, victims out. One paper per file; the contract is `tierkv.policies.base`."""

from tierkv.policies.arc import ArcPolicy, ArcSnapshot
from tierkv.policies.base import Policy, Selection
from tierkv.policies.lru import LruPolicy

__all__ = ["ArcPolicy", "ArcSnapshot", "LruPolicy", "Policy", "Selection"]
