"""The contract suite of block codecs: tests for each numbered sentence of `tierkv.codecs.base.BlockCodec`.

Subclass `CodecContract`, supply `make`, and let pytest collect the subclass.
"""

from __future__ import annotations

import tracemalloc
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tierkv.codecs.base import BlockCodec
from tierkv.errors import DataError
from tierkv.model.layout import DTYPE_BYTES, Layout

GUARD = b"\xa5" * 64

every_dtype = pytest.mark.parametrize("dtype", DTYPE_BYTES)
# One test method serves several subclasses; that is what a contract suite is.
shared = settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors])


def layout_of(dtype: str, elements: int = 48) -> Layout:
    """A flat layout of a few elements."""
    return Layout(shape=(elements,), dtype=dtype, block_tokens=1)


def block_of(layout: Layout, seed: int = 0) -> bytes:
    """What normally distributed values look like in the layout's dtype (for the narrow ones, bytes around a middle)."""
    elements = layout.block_bytes // DTYPE_BYTES[layout.dtype]
    values = np.random.default_rng(seed).standard_normal(elements).astype("<f4")
    if layout.dtype == "float32":
        return values.tobytes()
    if layout.dtype == "float16":
        return values.astype("<f2").tobytes()
    if layout.dtype == "bfloat16":
        return (values.view("<u4") >> 16).astype("<u2").tobytes()
    return (values * 20).astype("i1").tobytes()


def decoded(codec: BlockCodec, payload: bytes | bytearray | memoryview, layout: Layout) -> bytes:
    """What a payload decodes to."""
    target = bytearray(layout.block_bytes)
    codec.decode(memoryview(payload), memoryview(target), layout)
    return bytes(target)


class CodecContract(ABC):
    """Tests that every lossless block codec passes."""

    detects_damage = True
    """Whether a payload with a flipped bit never decodes to another block; identity has nothing to tell by."""

    @abstractmethod
    def make(self) -> BlockCodec:
        """The codec under test."""

    def encoded(self, layout: Layout, block: bytes) -> bytes:
        return bytes(self.make().encode(memoryview(block), layout))

    def test_is_exact(self) -> None:
        assert self.make().exact

    @every_dtype
    @pytest.mark.parametrize("elements", [1, 2, 3, 48, 4096])
    def test_1_gives_back_every_bit(self, dtype: str, elements: int) -> None:
        layout = layout_of(dtype, elements)
        for seed in range(3):
            block = block_of(layout, seed)
            assert decoded(self.make(), self.encoded(layout, block), layout) == block

    @every_dtype
    @pytest.mark.parametrize("value", [0x00, 0x7F, 0xFF])
    def test_1_gives_back_constant_blocks(self, dtype: str, value: int) -> None:
        layout = layout_of(dtype, 512)
        block = bytes([value]) * layout.block_bytes
        assert decoded(self.make(), self.encoded(layout, block), layout) == block

    @shared
    @given(st.sampled_from(sorted(DTYPE_BYTES)), st.binary(min_size=4, max_size=400))
    def test_1_gives_back_any_bytes(self, dtype: str, data: bytes) -> None:
        block = data[: len(data) // 4 * 4]
        layout = layout_of(dtype, len(block) // DTYPE_BYTES[dtype])
        assert decoded(self.make(), self.encoded(layout, block), layout) == block

    @every_dtype
    def test_2_reads_and_writes_only_within_its_buffers(self, dtype: str) -> None:
        """Blocks, payloads and targets lie amid other bytes, at odd addresses, the first two read-only."""
        codec, layout = self.make(), layout_of(dtype)
        block = block_of(layout)
        inside = slice(len(GUARD) + 1, -len(GUARD))
        around = b"\x5a" + GUARD
        payload = bytes(codec.encode(memoryview(around + block + GUARD)[inside], layout))
        assert payload == self.encoded(layout, block)
        target = bytearray(around + bytes(len(block)) + GUARD)
        codec.decode(memoryview(around + payload + GUARD)[inside], memoryview(target)[inside], layout)
        assert bytes(target) == around + block + GUARD

    @every_dtype
    def test_3_refuses_a_payload_cut_short_or_extended(self, dtype: str) -> None:
        layout = layout_of(dtype)
        payload = self.encoded(layout, block_of(layout))
        for wrong in (*(payload[:length] for length in range(len(payload))), payload + b"\0", payload + payload, b"\0" + payload):
            with pytest.raises(DataError):
                decoded(self.make(), wrong, layout)

    @every_dtype
    def test_3_refuses_the_payload_of_a_block_of_another_length(self, dtype: str) -> None:
        payload = self.encoded(layout_of(dtype, 49), block_of(layout_of(dtype, 49)))
        with pytest.raises(DataError):
            decoded(self.make(), payload, layout_of(dtype, 48))

    @every_dtype
    def test_3_a_flipped_bit_never_gives_another_block(self, dtype: str) -> None:
        layout = layout_of(dtype, 16)
        block = block_of(layout)
        payload = self.encoded(layout, block)
        for bit_idx in range(8 * len(payload)):
            damaged = bytearray(payload)
            damaged[bit_idx // 8] ^= 1 << bit_idx % 8
            result = None
            with suppress(DataError):
                result = decoded(self.make(), damaged, layout)
            assert result in (None, block) or not self.detects_damage

    @shared
    @given(st.sampled_from(sorted(DTYPE_BYTES)), st.binary(max_size=200))
    def test_3_any_other_bytes_raise_nothing_but_data_errors(self, dtype: str, payload: bytes) -> None:
        with suppress(DataError):
            decoded(self.make(), payload, layout_of(dtype))

    @every_dtype
    def test_4_memory_is_bounded_by_the_block(self, dtype: str) -> None:
        """Each byte of a payload in turn claims the most that a byte can."""
        codec, layout = self.make(), layout_of(dtype, 1024)
        payload = self.encoded(layout, block_of(layout))
        tracemalloc.start()
        try:
            for byte_idx in range(min(len(payload), 64)):
                with suppress(DataError):
                    decoded(codec, payload[:byte_idx] + b"\xff" + payload[byte_idx + 1 :], layout)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes <= 8 * layout.block_bytes + (1 << 18)

    def test_5_several_threads_may_share_it(self) -> None:
        codec, layout = self.make(), layout_of("bfloat16", 4096)
        blocks = [block_of(layout, seed) for seed in range(32)]

        def travel(block: bytes) -> bytes:
            return decoded(codec, codec.encode(memoryview(block), layout), layout)

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(travel, blocks)) == blocks
