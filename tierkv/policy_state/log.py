"""The log after a snapshot: records of events, each with its checksum (`docs/format.md`, "Policy state")."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tierkv.policy_state.snapshot import VERSION, Checksum

RECORD_BYTES_LIMIT = 1 << 26
"""Of a payload."""
_MAGIC = b"TKVPOLOG"
_HEADER = struct.Struct("<8sHHIQ8x")
HEADER_BYTES = 48
_RECORD = struct.Struct("<II16s")
_SEAL = struct.Struct("<QQ")


def encode_log_header(generation: int, checksum: Checksum) -> bytes:
    header = _HEADER.pack(_MAGIC, VERSION, HEADER_BYTES, 0, generation)
    return header + checksum(header)


def encode_record(payload: bytes, generation: int, number: int, checksum: Checksum) -> bytes:
    """payload — 1 to RECORD_BYTES_LIMIT bytes; number — of records before this one."""
    return _RECORD.pack(len(payload), 0, checksum(_SEAL.pack(generation, number) + payload)) + payload


def generation_of(content: bytes, checksum: Checksum) -> int:
    """The generation that a log's header states; 0 where it has none to be believed."""
    if len(content) < HEADER_BYTES:
        return 0
    (generation,) = struct.unpack_from("<Q", content, 16)
    return int(generation) if content[:HEADER_BYTES] == encode_log_header(generation, checksum) else 0


@dataclass(slots=True)
class LogReader:
    """Reads the payloads of a log up to the first record that cannot be believed; `fault` then says what is wrong with it.

    A record that the end of the file cuts short is what a kill leaves behind, and no fault.
    """

    content: bytes
    generation: int
    checksum: Checksum
    fault: str = ""

    def __iter__(self) -> Iterator[bytes]:
        if len(self.content) < HEADER_BYTES:
            return  # the kill came between snapshot and log
        found = generation_of(self.content, self.checksum)
        if found == 0:
            self.fault = "its header is damaged or of another version"
            return
        if found != self.generation:
            return  # the kill came before the log of this snapshot was begun
        offset, number = HEADER_BYTES, 0
        while offset + _RECORD.size <= len(self.content):
            length, zero, digest = _RECORD.unpack_from(self.content, offset)
            payload = self.content[offset + _RECORD.size : offset + _RECORD.size + length]
            if not 0 < length <= RECORD_BYTES_LIMIT or zero:
                self.fault = f"record {number} has an impossible length"
                return
            if len(payload) < length:
                return
            if self.checksum(_SEAL.pack(self.generation, number) + payload) != digest:
                self.fault = f"record {number} does not have its checksum"
                return
            yield payload
            offset += _RECORD.size + length
            number += 1
