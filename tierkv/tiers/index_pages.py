"""Looks over the pages of an LMDB file before LMDB does: LMDB believes its pages, and a damaged one can end the process.

Everything that LMDB follows is followed here: meta pages, the trees of all databases, overflow pages and the list of free pages. It
does not look at what records say; nothing is changed. Source: the structs of LMDB 0.9 (`mdb.c`), 64-bit, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from tierkv.errors import DataError

_META = struct.Struct("<II8xQ")
_META_AT = 16
_DATABASES_AT = _META_AT + _META.size
_DATABASE = struct.Struct("<IHHQQQQQ")
_TAIL = struct.Struct("<QQ")
_HEADER = struct.Struct("<Q2xHHH")
_NODE = struct.Struct("<HHHH")
_PAGE_NUMBER = struct.Struct("<Q")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW, _META_FLAG = 1, 2, 4, 8
_BIG_DATA, _SUB_DATABASE = 1, 2
_NO_ROOT = (1 << 64) - 1
_DEPTH_LIMIT = 32
_FIRST_PAGE = 2
"""Pages 0 and 1 are the meta pages."""


def check_pages(path: Path) -> None:
    """Raises DataError for a file with a page that LMDB must not meet. About 1 µs a record. A missing or empty file is fine."""
    try:
        with path.open("rb") as file:
            length = file.seek(0, 2)
            if length == 0:
                return
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
                _Walk(content, path).check()
    except FileNotFoundError:
        return
    except (struct.error, IndexError) as error:
        raise DataError("an index file is damaged", path=path, error=error) from error


class _Walk:
    def __init__(self, content: mmap.mmap, path: Path) -> None:
        self._content = content
        self._path = path
        self._size = 4096
        self._last_page = 0
        self._used: set[int] = set()

    def check(self) -> None:
        page_size = struct.unpack_from("<I", self._content, _DATABASES_AT)[0]  # md_pad of the free-list database
        self._require(page_size in (4096, 8192, 16384, 32768), 0, "it states an impossible page size")
        self._size = page_size
        metas = [self._meta(number) for number in (0, 1)]
        databases_at, self._last_page, _ = max(metas, key=lambda meta: meta[2])
        self._require((self._last_page + 1) * page_size <= len(self._content), self._last_page, "the file was cut short")
        free = self._tree(databases_at, is_main=False)
        self._tree(databases_at + _DATABASE.size, is_main=True)
        self._check_free(free)

    def _meta(self, number: int) -> tuple[int, int, int]:
        """Where the databases of a meta page stand, the last page, the transaction."""
        start = number * self._size
        magic, version, _ = _META.unpack_from(self._content, start + _META_AT)
        flags = _HEADER.unpack_from(self._content, start)[1]
        self._require(magic == _MAGIC and version == _VERSION and flags & _META_FLAG, number, "it is no meta page")
        databases_at = start + _DATABASES_AT
        last_page, transaction = _TAIL.unpack_from(self._content, databases_at + 2 * _DATABASE.size)
        return databases_at, last_page, transaction

    def _tree(self, database_at: int, *, is_main: bool) -> list[tuple[int, int]]:
        """Follows a database; where the values of its leaves lie: (position, length)."""
        _, _, depth, _, _, _, _, root = _DATABASE.unpack_from(self._content, database_at)
        if root == _NO_ROOT:
            return []
        values: list[tuple[int, int]] = []
        level = [root]
        self._require(1 <= depth <= _DEPTH_LIMIT, root, "its tree has an impossible depth")
        for _ in range(depth - 1):
            level = [child for number in level for child in self._branch(number)]
        for number in level:
            self._leaf(number, values, is_main=is_main)
        return values

    def _nodes(self, number: int, kind: int) -> list[tuple[int, int, int, int, int]]:
        """(position, lo, hi, flags, key length) of the nodes of a page that is of the kind it should be."""
        self._use(number)
        start = number * self._size
        found, flags, lower, upper = _HEADER.unpack_from(self._content, start)
        count = (lower - _HEADER.size) // 2
        is_sound = found == number and flags & 0x2F == kind and lower % 2 == 0 and count > 0 and lower <= upper <= self._size
        self._require(is_sound, number, "its header is wrong")
        nodes: list[tuple[int, int, int, int, int]] = []
        taken = 0
        for pointer in struct.unpack_from(f"<{count}H", self._content, start + _HEADER.size):
            self._require(upper <= pointer <= self._size - _NODE.size, number, "a node lies outside")
            low, high, node_flags, key_length = _NODE.unpack_from(self._content, start + pointer)
            value_length = 0 if kind == _BRANCH else _PAGE_NUMBER.size if node_flags & _BIG_DATA else low | high << 16
            length = _NODE.size + key_length + value_length
            self._require(pointer + length <= self._size, number, "a node is too long")
            taken += length + length % 2
            nodes.append((start + pointer, low, high, node_flags, key_length))
        self._require(taken <= self._size - upper, number, "nodes overlap")
        return nodes

    def _branch(self, number: int) -> list[int]:
        return [low | high << 16 | flags << 32 for _, low, high, flags, _ in self._nodes(number, _BRANCH)]

    def _leaf(self, number: int, values: list[tuple[int, int]], *, is_main: bool) -> None:
        for position, low, high, flags, key_length in self._nodes(number, _LEAF):
            value_at, length = position + _NODE.size + key_length, low | high << 16
            if flags & _BIG_DATA:
                value_at = self._overflow(_PAGE_NUMBER.unpack_from(self._content, value_at)[0], length)
            elif is_main:
                self._require(flags == _SUB_DATABASE and length == _DATABASE.size, number, "it holds something else than databases")
                self._tree(value_at, is_main=False)
            else:
                self._require(flags == 0, number, "a node has an unknown kind")
            values.append((value_at, length))

    def _overflow(self, number: int, length: int) -> int:
        """Where the value on overflow pages lies."""
        self._use(number)
        start = number * self._size
        found, flags, low, high = _HEADER.unpack_from(self._content, start)
        count = low | high << 16
        is_sound = found == number and flags & _OVERFLOW and _HEADER.size + length <= count * self._size
        self._require(bool(is_sound) and number + count - 1 <= self._last_page, number, "its header is wrong")
        for other in range(number + 1, number + count):
            self._use(other)
        return start + _HEADER.size

    def _check_free(self, lists: list[tuple[int, int]]) -> None:
        """A page that is in use and on the list of free ones would be overwritten."""
        for position, length in lists:
            (count,) = _PAGE_NUMBER.unpack_from(self._content, position)
            self._require((count + 1) * _PAGE_NUMBER.size <= length, 0, "a list of free pages is wrong")
            for number in struct.unpack_from(f"<{count}Q", self._content, position + _PAGE_NUMBER.size):
                self._use(number)

    def _use(self, number: int) -> None:
        self._require(_FIRST_PAGE <= number <= self._last_page, number, "there is no such page")
        self._require(number not in self._used, number, "it is used twice")
        self._used.add(number)

    def _require(self, is_sound: bool | int, number: int, problem: str) -> None:
        if not is_sound:
            raise DataError("an index file is damaged", path=self._path, page=number, problem=problem)
