"""Assembly: the one module that knows every concrete part and puts a store together from settings."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from tierkv.clock import Clock, SystemClock
from tierkv.codecs import codec_by_id, codec_by_name
from tierkv.codecs.frame import FrameCodec, checksum
from tierkv.config import parse_size
from tierkv.embedded import EmbeddedStore
from tierkv.errors import DataError
from tierkv.index.block_index import BlockIndex
from tierkv.index.entry import BlockEntry
from tierkv.machine import default_disk_bytes, default_host_bytes
from tierkv.model.keys import BlockKey
from tierkv.model.outcomes import Durability
from tierkv.namespaces import NamespaceTable
from tierkv.placement.mover import Mover
from tierkv.placement.residency import Residency
from tierkv.policies import ArcPolicy, LruPolicy
from tierkv.policies.base import Policy
from tierkv.settings import DiskSettings, HostSettings, PolicyName, StoreSettings
from tierkv.store import TieredStore
from tierkv.tiers.base import Tier
from tierkv.tiers.host import HostTier
