"""The client: `connect` gives a `BlockStore` that a daemon keeps; `aio.connect` the same verbs as coroutines."""

from tierkv.client.sync import Client, connect

__all__ = ["Client", "connect"]
