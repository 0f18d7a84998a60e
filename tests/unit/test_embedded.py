"""The embedded store's lease: it ends for its reader no later than for the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tierkv
from tierkv.assemble import open_tiered_store
from tierkv.embedded import EmbeddedStore
from tierkv.errors import InvalidRequestError
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.model.outcomes import Durability
from tierkv.settings import MIB, DiskSettings, HostSettings, LimitSettings, StoreSettings
from tierkv.testing.clock import ManualClock


def test_a_reader_that_was_held_up_after_acquire_does_not_believe_its_lease_longer_than_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = StoreSettings(
        data_folder=tmp_path / "data",
        host=HostSettings(MIB, folder=tmp_path / "arena", prefault=False),
        disk=DiskSettings(0),
        limits=LimitSettings(lease_ttl_s=10.0),
    )
    clock = ManualClock()
    with EmbeddedStore(open_tiered_store(settings, clock), clock=clock, discard_arena=True) as store:
        namespace_id = store.register(Identity(weights="w"), Layout((32,), "uint8", 1)).namespace_id
        keys = chain_keys(namespace_id, range(1), block_tokens=1)
        store.put(namespace_id, keys, [memoryview(bytes(32))])
        acquire = store.tiered.acquire

        def acquire_slowly(*arguments: Any) -> Any:
            acquired = acquire(*arguments)
            clock.advance(3.0)
            return acquired

        monkeypatch.setattr(store.tiered, "acquire", acquire_slowly)
        lease = store.acquire(namespace_id, keys)
        assert lease.is_valid
        clock.advance(7.0)
        assert not lease.is_valid


def test_a_durability_given_as_text_is_the_promise_itself_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    with tierkv.open_store(tmp_path / "data", host_memory="1MiB", disk="16MiB", durability="strict") as store:
        namespace = store.register(Identity(weights="w"), Layout((32,), "uint8", 1))
        assert namespace.durability is Durability.STRICT
        keys = chain_keys(namespace.namespace_id, range(1), block_tokens=1)
        commits: list[Any] = []
        commit = store.tiered.commit
        store.tiered.commit = lambda *arguments: commits.append(commit(*arguments)) or commits[-1]  # type: ignore[func-returns-value]
        store.put(namespace.namespace_id, keys, [memoryview(bytes(32))], durability="strict")  # type: ignore[arg-type]
        assert commits[0].durable is not None, "a strict commit is waited for"
        with pytest.raises(InvalidRequestError, match="volatile, interval, strict"):
            store.register(Identity(weights="v"), Layout((32,), "uint8", 1), durability="none")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="unknown durability"):
        tierkv.open_store(tmp_path / "data", durability="none")
