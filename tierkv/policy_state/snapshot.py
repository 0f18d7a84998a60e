"""Snapshots: a policy at one moment, with the lineage that the log after it builds on, as bytes (`docs/format.md`, "Policy state").

Checks in this order: length, magic, version, header checksum, bounds, body checksum, and whether what is said can be. What passes
is the state of a policy; whether it fits this one is the policy's to say.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tierkv.errors import DataError
from tierkv.model.keys import KEY_BYTES, BlockKey
from tierkv.policies.image import PolicyImage
from tierkv.policy_state.lineage import Lineage, Run

Checksum: TypeAlias = Callable[[bytes | memoryview], bytes]
"""16 bytes for a buffer."""

VERSION = 1
KEYS_LIMIT = 1 << 27
_MAGIC = b"TKVPSNAP"
_NO_PARENT = (1 << 32) - 1
_HEADER = struct.Struct("<8sHHI16sQQQddQQIIII24x")
_CHECKED_BYTES = 144
HEADER_BYTES = 160


def encode_snapshot(image: PolicyImage[BlockKey], lineage: Lineage, generation: int, checksum: Checksum) -> list[bytes]:
    """The bytes of a snapshot, in pieces. `lineage` is settled on the image's resident keys, as a reader will find it."""
    runs = lineage.settle(set(image.t1).union(image.t2))
    resident = [key for run in runs for key in run.keys]
    idx_of = dict(zip(resident, range(len(resident)), strict=True))
    keys = resident + image.ghosts
    lengths = [(len(run.keys), _NO_PARENT if run.parent is None else idx_of[run.parent]) for run in runs]
    parts = [
        b"".join(keys),
        _array(map(image.weight_of().__getitem__, keys), "<u8"),
        _array((image.touched_at.get(key, 0) for key in resident), "<i8"),
        _array(itertools.chain.from_iterable(lengths), "<u4"),
        _array(map(idx_of.__getitem__, image.t1), "<u4"),
        _array(map(idx_of.__getitem__, image.t2), "<u4"),
        _array(map(image.in_b2.__contains__, image.ghosts), "u1"),
    ]
    body = b"".join(parts)
    header = _HEADER.pack(
        _MAGIC,
        VERSION,
        HEADER_BYTES,
        len(runs),
        image.name.encode("ascii"),
        generation,
        image.capacity,
        image.now,
        image.p,
        image.w,
        image.hits_b1,
        image.hits_b2,
        len(image.t1),
        len(image.t2),
        len(image.ghosts) - len(image.in_b2),
        len(image.in_b2),
    )
    header += checksum(body)
    return [header, checksum(header), body]


def _array(numbers: Iterable[int], dtype: str) -> bytes:
    return np.fromiter(numbers, dtype).tobytes()


def decode_snapshot(content: bytes, checksum: Checksum) -> tuple[PolicyImage[BlockKey], Lineage, int]:
    """The image, its lineage and the generation. Raises DataError, saying why, for anything that is not a snapshot of this version."""
    if len(content) < HEADER_BYTES or content[:8] != _MAGIC:
        raise DataError("this is no snapshot of a policy", length=len(content))
    version = int.from_bytes(content[8:10], "little")
    if version != VERSION:
        raise DataError("this snapshot has another version", found=version, version=VERSION)
    if content[_CHECKED_BYTES:HEADER_BYTES] != checksum(content[:_CHECKED_BYTES]):
        raise DataError("the header of a snapshot does not have its checksum")
    if content[104:128] != bytes(24):
        raise DataError("reserved bytes of a snapshot are in use")
    _, _, header_bytes, num_runs, name, generation, capacity, now, p, w, hits_b1, hits_b2, *counts = _HEADER.unpack_from(content)
    num_resident, num_ghosts = counts[0] + counts[1], counts[2] + counts[3]
    num_keys = num_resident + num_ghosts
    length = HEADER_BYTES + 40 * num_keys + 12 * num_resident + 8 * num_runs + num_ghosts
    if header_bytes != HEADER_BYTES or num_keys > KEYS_LIMIT or num_runs > num_resident or len(content) != length:
        raise DataError("a snapshot has another length than its header says", found=len(content), expected=length)
    body = memoryview(content)[HEADER_BYTES:]
    if checksum(body) != content[128:_CHECKED_BYTES]:
        raise DataError("a snapshot does not have its checksum")
    parts = _Parts(body)
    keys = parts.keys(num_keys)
    weights = parts.numbers("<u8", num_keys)
    moments = parts.numbers("<i8", num_resident)
    runs = parts.numbers("<u4", 2 * num_runs)
    t1, t2 = parts.numbers("<u4", counts[0]), parts.numbers("<u4", counts[1])
    in_b2 = parts.numbers("u1", num_ghosts)
    resident = keys[:num_resident]
    _check(keys, weights, t1 + t2, num_resident, runs)
    if sum(in_b2) != counts[3] or set(in_b2) > {0, 1} or not (math.isfinite(p) and math.isfinite(w)) or capacity < 1:
        raise DataError("a snapshot contradicts itself")
    image = PolicyImage(
        name=name.rstrip(b"\0").decode("ascii", "replace"),
        capacity=capacity,
        now=now,
        p=p,
        w=w,
        hits_b1=hits_b1,
        hits_b2=hits_b2,
        t1=[keys[idx] for idx in t1],
        t2=[keys[idx] for idx in t2],
        ghosts=keys[num_resident:],
        in_b2=set(itertools.compress(keys[num_resident:], in_b2)),
        keys=keys,
        weights=weights,
        touched_at=dict(zip(resident, moments, strict=True)),
    )
    return image, _lineage(resident, runs), generation


def _check(keys: list[BlockKey], weights: list[int], order: list[int], num_resident: int, runs: list[int]) -> None:
    is_sound = (
        len(set(keys)) == len(keys)
        and all(weights)
        and sorted(order) == list(range(num_resident))
        and all(runs[0::2])
        and sum(runs[0::2]) == num_resident
        and all(parent < num_resident or parent == _NO_PARENT for parent in runs[1::2])
    )
    if not is_sound:
        raise DataError("a snapshot contradicts itself")


def _lineage(resident: list[BlockKey], runs: list[int]) -> Lineage:
    found: list[Run] = []
    start = 0
    for num_keys, parent in zip(runs[0::2], runs[1::2], strict=True):
        found.append(Run(resident[start : start + num_keys], None if parent == _NO_PARENT else resident[parent]))
        start += num_keys
    return Lineage(found)


class _Parts:
    """The parts of a body, one after the other; its length has been checked."""

    def __init__(self, body: memoryview) -> None:
        self._body = body

    def keys(self, num_keys: int) -> list[BlockKey]:
        joined = bytes(self._take(KEY_BYTES * num_keys))
        return [BlockKey(joined[start : start + KEY_BYTES]) for start in range(0, len(joined), KEY_BYTES)]

    def numbers(self, dtype: str, count: int) -> list[int]:
        array: npt.NDArray[np.integer] = np.frombuffer(self._take(np.dtype(dtype).itemsize * count), dtype)
        numbers: list[int] = array.tolist()
        return numbers

    def _take(self, size: int) -> memoryview:
        part, self._body = self._body[:size], self._body[size:]
        return part
