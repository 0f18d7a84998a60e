"""Local buffers in the place of the arena, for a client that shares no memory with the daemon, and the streams that carry them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tierkv.client.verbs import PutCall
from tierkv.errors import CapacityError
from tierkv.interface import Grant
from tierkv.model.keys import BlockKey
from tierkv.model.outcomes import ReserveOutcome
from tierkv.wire._generated import tierkv_pb2 as pb
from tierkv.wire.limits import CHUNK_BYTES
from tierkv.wire.messages import durability_number, hints_message, pack_keys

SCRATCH_BYTES_LIMIT = 1 << 30
"""Largest sum of the local buffers of one reservation."""


def scratch_grants(keys: Sequence[BlockKey], *, num_present: int, block_bytes: int) -> tuple[Grant, ...]:
    """The first keys are held; the others get buffers of this process. Raises CapacityError above 1 GiB.

    num_present — -1 where the key before them is not held: then all are refused.
    """
    if num_present < 0:
        return tuple(Grant(key, ReserveOutcome.REFUSED, None) for key in keys)
    wanted = (len(keys) - num_present) * block_bytes
    if wanted > SCRATCH_BYTES_LIMIT:
        raise CapacityError("a reservation without shared memory has at most 1 GiB; reserve in parts", wanted=wanted)
    present = [Grant(key, ReserveOutcome.PRESENT, None) for key in keys[:num_present]]
    granted = [Grant(key, ReserveOutcome.GRANTED, memoryview(bytearray(block_bytes))) for key in keys[num_present:]]
    return tuple(present + granted)


def put_requests(put: PutCall) -> Iterator[pb.PutRequest]:
    """The messages of a Put: header, then every block in chunks of at most 1 MiB. Raises InvalidRequestError at once for bad keys."""
    header = pb.PutHeader(
        namespace_id=put.namespace_id,
        keys=pack_keys(put.keys),
        parent=put.parent or b"",
        durability=durability_number(put.durability),  # type: ignore[arg-type]  # a number of the enum
        hints=hints_message(put.hints),
    )
    return itertools.chain([pb.PutRequest(header=header)], _chunks(put.sources))


def _chunks(sources: Sequence[memoryview]) -> Iterator[pb.PutRequest]:
    for idx, source in enumerate(sources):
        flat = source.cast("B") if source.ndim != 1 or source.format != "B" else source
        for start in range(0, len(flat), CHUNK_BYTES):
            yield pb.PutRequest(chunk=pb.PutChunk(block_idx=idx, data=bytes(flat[start : start + CHUNK_BYTES])))
