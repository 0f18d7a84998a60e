"""The `BlockStore` and `PageStore` interfaces over a `TieredStore` in this process, without a daemon: `tierkv.open_store`.

`leases` is what the verbs answer, `session` what they stand on, `pages` those of the device tier, `store` those of blocks.
"""

from tierkv.embedded.store import EmbeddedStore

__all__ = ["EmbeddedStore"]
