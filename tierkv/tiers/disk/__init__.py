"""The disk tier: preallocated segment files for frames, an LMDB environment for what lies where."""

from tierkv.tiers.disk.folder import DataFolder
from tierkv.tiers.disk.tier import DiskTier

__all__ = ["DataFolder", "DiskTier"]
