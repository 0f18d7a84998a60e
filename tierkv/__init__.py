"""TierKV: keys and values of language models, kept outside the model.

`open_store(path)` gives a store in this process, `connect(address)` one that a daemon keeps; both are a
`tierkv.interface.BlockStore`. Importing this module loads neither torch nor grpc nor lmdb.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierkv.assemble import open_store
    from tierkv.client import connect

__all__ = ["__version__", "connect", "open_store"]
__version__ = "0.1.0"

_HOMES = {"open_store": "tierkv.assemble", "connect": "tierkv.client"}


def __getattr__(name: str) -> object:
    """Loads the two entry points, and what they need, when they are first used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tierkv' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)
