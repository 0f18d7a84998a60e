"""The transport benchmark against a store without a transport: it measures what it says and leaves nothing stored."""

import dataclasses

import pytest

from tierkv.errors import InternalError
from tierkv.model.hints import NO_HINTS
from tierkv.testing.fake_store import FakeBackend, FakeBlockStore
from tierkv_bench import transport


def measure(store):
    return transport.measure(store, blocks=4, block_bytes=4096, rounds=2, say=lambda _: None)


def test_fields_are_those_of_the_contract_and_the_store_is_empty_afterwards():
    store = FakeBlockStore(FakeBackend())
    fields = dataclasses.asdict(measure(store))
    promised = {
        "blocks", "block_bytes", "memcpy_gbps", "put_gbps", "get_gbps", "put_ratio", "get_ratio",
        "acquire_ms_p50", "acquire_ms_p99", "empty_call_ms_p50",
    }  # fmt: skip
    assert promised <= fields.keys()
    assert (fields["blocks"], fields["block_bytes"]) == (4, 4096)
    assert all(value > 0 for value in fields.values())
    assert sum(tier.blocks for tier in store.stats().tiers) == 0
    store.close()


def test_a_store_without_room_is_no_measurement():
    with pytest.raises(InternalError, match="a put was refused"):
        measure(FakeBlockStore(FakeBackend(capacity_blocks=2)))


class WrongStore(FakeBlockStore):
    """Claims every block and fills none."""

    def get(self, namespace_id, keys, targets, *, hints=NO_HINTS, timeout_s=None):
        return len(targets)


def test_bytes_that_do_not_come_back_are_no_measurement():
    with pytest.raises(InternalError, match="did not bring back"):
        measure(WrongStore(FakeBackend()))
