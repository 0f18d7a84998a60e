"""The contract of `tierkv.tiers.base.Tier` as tests: a tier passes when a subclass of `TierSuite` does.

Every numbered sentence of the interface has a test here, named by its number. Content derives from numbers, so any test can judge any
answer. The subclass gives raw access that bypasses its tier (`damage`).
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tierkv.codecs.checksum import checksum
from tierkv.model.keys import BlockKey, NamespaceId
from tierkv.model.outcomes import BlockRecord
from tierkv.tiers.base import GetOutcome, PutOutcome, Tier

SIZES = (1, 511, 4095, 4096, 4097, 20_000, 65_536)
CAPACITY_BYTES = 1 << 20
SEGMENT_BYTES = 1 << 18
BLOCK_BYTES = 20_000


def key_of(number: int) -> BlockKey:
    """Keys are spread as hashes are, and tell their number in their last bytes."""
    return BlockKey(checksum(b"%d" % number) + number.to_bytes(16, "big"))


def content_of(number: int, size: int = BLOCK_BYTES) -> memoryview:
    """The block of a number: three quarters noise, so that a codec finds something and the tier still fills up."""
    noise = random.Random(number).randbytes(size - size // 4)
    return memoryview(noise + noise[: size // 4])


def record_of(number: int, size: int = BLOCK_BYTES) -> BlockRecord:
    """Its record in block form; the generation is the number."""
    digest = checksum(content_of(number, size))
    return BlockRecord(
        key=key_of(number),
        namespace_id=NamespaceId(bytes(31) + b"n"),
        parent=key_of(number - 1) if number else None,
        generation=number,
        block_bytes=size,
        checksum=digest,
        codec=0,
        payload_bytes=size,
        payload_checksum=digest,
    )


def put(tier: Tier, numbers: Sequence[int], size: int = BLOCK_BYTES) -> list[PutOutcome]:
    """Puts blocks of one size."""
    return tier.put([(record_of(number, size), content_of(number, size)) for number in numbers])


def get(tier: Tier, numbers: Sequence[int], size: int = BLOCK_BYTES) -> list[GetOutcome]:
    """Gets blocks of one size and asserts that every hit is exact."""
    targets = [memoryview(bytearray(size)) for _ in numbers]
    outcomes = tier.get([key_of(number) for number in numbers], targets)
    for number, target, outcome in zip(numbers, targets, outcomes, strict=True):
        assert outcome is not GetOutcome.HIT or target == content_of(number, size), f"block {number} came back with other bytes"
    return outcomes


class TierSuite(ABC):
    """Subclass it as a test class. Each tier under test has CAPACITY_BYTES."""

    is_persistent = False

    @abstractmethod
    def open_tier(self, folder: Path) -> Tier:
        """The tier whose files, if any, lie in `folder`; called again after a close it must find what is there."""

    @abstractmethod
    def damage(self, tier: Tier, folder: Path, key: BlockKey) -> None:
        """Flips a byte of the stored payload behind the tier's back."""

    @pytest.fixture
    def tier(self, tmp_path: Path) -> Iterator[Tier]:
        tier = self.open_tier(tmp_path)
        yield tier
        tier.check_integrity()
        tier.close()

    def reopened(self, tier: Tier, folder: Path) -> Tier:
        tier.close()
        return self.open_tier(folder)

    # -- the implementation must, sentence by sentence

    def test_1_what_put_acknowledged_is_there_after_a_restart(self, tmp_path: Path) -> None:
        if not self.is_persistent:
            pytest.skip("this tier promises nothing beyond the process")
        tier = self.open_tier(tmp_path)
        for idx, size in enumerate(SIZES):
            assert put(tier, [idx], size) == [PutOutcome.STORED]
        tier = self.reopened(tier, tmp_path)
        assert [get(tier, [idx], size) for idx, size in enumerate(SIZES)] == [[GetOutcome.HIT]] * len(SIZES)
        assert list(tier.records()) == [record_of(idx, size) for idx, size in enumerate(SIZES)]
        tier.check_integrity()
        tier.close()

    @pytest.mark.parametrize("size", SIZES)
    def test_2_a_hit_is_exactly_what_was_put(self, tier: Tier, size: int) -> None:
        assert put(tier, [1, 2, 3], size) == [PutOutcome.STORED] * 3
        assert get(tier, [1, 2, 3], size) == [GetOutcome.HIT] * 3

    @pytest.mark.parametrize("size", SIZES)
    def test_2_a_damaged_copy_is_damaged_once_and_missed_afterwards(self, tier: Tier, tmp_path: Path, size: int) -> None:
        put(tier, [1, 2, 3], size)
        self.damage(tier, tmp_path, key_of(2))
        assert get(tier, [1, 2, 3], size) == [GetOutcome.HIT, GetOutcome.DAMAGED, GetOutcome.HIT]
        assert get(tier, [1, 2, 3], size) == [GetOutcome.HIT, GetOutcome.MISS, GetOutcome.HIT]
        assert key_of(2) not in tier
        assert len(tier) == 2
        tier.check_integrity()
        assert put(tier, [2], size) == [PutOutcome.STORED], "a good copy may take its place"
        assert get(tier, [2], size) == [GetOutcome.HIT]

    def test_2_held_bytes_are_not_touched_by_a_second_put(self, tier: Tier) -> None:
        put(tier, [1])
        assert tier.put([(record_of(1), content_of(9))]) == [PutOutcome.ALREADY]
        assert get(tier, [1]) == [GetOutcome.HIT]

    def test_3_outcomes_are_in_the_order_of_the_request(self, tier: Tier) -> None:
        assert put(tier, [5, 3]) == [PutOutcome.STORED] * 2
        assert put(tier, [4, 3, 6, 5]) == [PutOutcome.STORED, PutOutcome.ALREADY, PutOutcome.STORED, PutOutcome.ALREADY]
        found = get(tier, [7, 6, 5, 8, 4, 3, 9])
        assert [outcome is GetOutcome.HIT for outcome in found] == [False, True, True, False, True, True, False]

    def test_3_a_key_that_comes_twice_is_stored_once(self, tier: Tier) -> None:
        assert put(tier, [1, 2, 1]) == [PutOutcome.STORED, PutOutcome.STORED, PutOutcome.ALREADY]
        assert len(tier) == 2
        assert get(tier, [1, 1, 2]) == [GetOutcome.HIT] * 3
        tier.check_integrity()
        assert tier.delete([key_of(1), key_of(1), key_of(2)]) == 2
        assert tier.used_bytes == 0

    def test_4_a_reused_place_shows_the_new_block_and_never_the_old(self, tmp_path: Path) -> None:
        tier = self.open_tier(tmp_path)
        count = self.fill(tier)
        tier.delete([key_of(number) for number in range(count)])
        newer = range(1000, 1000 + count)
        assert put(tier, newer) == [PutOutcome.STORED] * count
        assert get(tier, range(count)) == [GetOutcome.MISS] * count
        assert get(tier, newer) == [GetOutcome.HIT] * count
        if self.is_persistent:
            tier = self.reopened(tier, tmp_path)
            assert get(tier, range(count)) == [GetOutcome.MISS] * count
            assert get(tier, newer) == [GetOutcome.HIT] * count
        tier.check_integrity()
        tier.close()

    def test_5_a_full_tier_says_so_and_takes_more_after_a_delete(self, tier: Tier) -> None:
        count = self.fill(tier)
        assert put(tier, [count, count + 1]) == [PutOutcome.NO_SPACE] * 2
        assert tier.used_bytes <= tier.capacity_bytes
        assert key_of(count) not in tier
        assert tier.delete([key_of(0)]) == 1
        assert put(tier, [count]) == [PutOutcome.STORED]
        tier.check_integrity()

    def test_5_what_fits_of_a_call_is_stored(self, tier: Tier) -> None:
        outcomes = put(tier, range(200))
        stored = outcomes.count(PutOutcome.STORED)
        assert outcomes == [PutOutcome.STORED] * stored + [PutOutcome.NO_SPACE] * (200 - stored)
        assert 0 < stored < 200
        assert tier.used_bytes <= tier.capacity_bytes
        assert get(tier, range(stored)) == [GetOutcome.HIT] * stored

    def test_5_a_payload_larger_than_the_tier_is_refused(self, tier: Tier) -> None:
        assert put(tier, [1], CAPACITY_BYTES + 1) == [PutOutcome.NO_SPACE]
        assert (len(tier), tier.used_bytes) == (0, 0)

    def test_6_threads_may_share_it(self, tier: Tier) -> None:
        """Four threads put, get and delete the same few blocks; every hit is exact, and nothing is lost or leaked."""

        def work(offset: int) -> None:
            for step in range(40):
                number = (step * 7 + offset) % 5
                put(tier, [number, (number + 1) % 5])
                assert GetOutcome.DAMAGED not in get(tier, [number, (number + 2) % 5])
                tier.delete([key_of((number + offset) % 5)])

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
        tier.check_integrity()
        tier.delete([key_of(number) for number in range(5)])
        assert (len(tier), tier.used_bytes) == (0, 0)

    # -- what the methods say

    def test_books_follow_puts_and_deletes(self, tier: Tier) -> None:
        assert (len(tier), tier.used_bytes, list(tier.records())) == (0, 0, [])
        put(tier, [3, 1, 2])
        assert tier.used_bytes <= 3 * tier.footprint_bytes(BLOCK_BYTES)
        assert len(tier) == 3
        assert [record.generation for record in tier.records()] == [1, 2, 3]
        assert tier.record(key_of(2)) == record_of(2)
        assert tier.record(key_of(4)) is None
        assert tier.delete([key_of(4), key_of(1)]) == 1
        assert tier.delete([key_of(1)]) == 0
        assert key_of(1) not in tier
        assert key_of(2) in tier
        assert tier.degraded is None

    def test_no_keys_are_fine(self, tier: Tier) -> None:
        assert (tier.put([]), tier.get([], []), tier.delete([])) == ([], [], 0)

    def test_close_may_be_called_twice(self, tmp_path: Path) -> None:
        tier = self.open_tier(tmp_path)
        put(tier, [1])
        tier.close()
        tier.close()

    def fill(self, tier: Tier) -> int:
        """Puts blocks 0, 1, … one at a time until one is refused; how many went in."""
        for number in range(1000):
            if put(tier, [number]) == [PutOutcome.NO_SPACE]:
                assert number > 0
                return number
            assert tier.used_bytes <= tier.capacity_bytes
        raise AssertionError("the tier never fills up")
