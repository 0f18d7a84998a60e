"""Copies between block buffers: at memory speed and without holding the interpreter's lock."""

from __future__ import annotations

import numpy as np

from tierkv.errors import InvalidRequestError


def copy_block(target: memoryview, source: memoryview) -> None:
    """Copies all of `source` into `target`. Both contiguous; raises InvalidRequestError unless they have the same size."""
    if target.nbytes != source.nbytes:
        raise InvalidRequestError("a buffer has the wrong size", expected=target.nbytes, got=source.nbytes)
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def check_buffers(buffers: list[memoryview], *, count: int, block_bytes: int, is_written: bool) -> None:
    """Raises InvalidRequestError unless there are `count` contiguous buffers of `block_bytes` bytes, writable where asked for."""
    if len(buffers) != count:
        raise InvalidRequestError("one buffer a key is needed", keys=count, buffers=len(buffers))
    for idx, buffer in enumerate(buffers):
        if buffer.nbytes != block_bytes:
            raise InvalidRequestError("a buffer has the wrong size", index=idx, expected=block_bytes, got=buffer.nbytes)
        if not buffer.c_contiguous:
            raise InvalidRequestError("a buffer must be contiguous", index=idx)
        if is_written and buffer.readonly:
            raise InvalidRequestError("a buffer to fill must be writable", index=idx)
