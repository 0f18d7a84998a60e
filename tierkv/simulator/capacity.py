"""Capacities as people write them: `5%` of a trace's unique blocks, or a plain number of blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from tierkv.errors import InvalidRequestError

EXPECTED_FORM = "a percentage of the unique blocks as in 5% or 0.5%, or a whole number of blocks as in 1000"

_FORM = re.compile(r"(?P<number>[0-9]{1,15})(?P<fraction>\.[0-9]{1,9})?(?P<percent>%)?")


@dataclass(frozen=True, slots=True)
class Capacity:
    """One capacity: `text` as given, and its number, in percent or in blocks."""

    text: str
    number: Decimal
    is_percent: bool

    def blocks(self, num_unique: int) -> int:
        """In blocks, rounded down; InvalidRequestError where that is less than one."""
        if not self.is_percent:
            return int(self.number)
        blocks = int(self.number * num_unique / 100)
        if blocks < 1:
            raise InvalidRequestError(
                "the capacity is smaller than one block of this trace; give more",
                capacity=self.text,
                unique_blocks=num_unique,
                smallest=f"1, or {_smallest_percent(num_unique)}%",
            )
        return blocks


def parse_capacity(text: str) -> Capacity:
    """Reads one capacity; InvalidRequestError with the expected form where it has none, or is zero."""
    match = _FORM.fullmatch(text.strip())
    if match is None or (match["fraction"] and not match["percent"]):
        raise InvalidRequestError("the capacity is malformed", capacity=text, expected=EXPECTED_FORM)
    number = Decimal(match["number"] + (match["fraction"] or ""))
    if number == 0:
        raise InvalidRequestError("a cache of nothing holds nothing; give a larger capacity", capacity=text, expected=EXPECTED_FORM)
    return Capacity(match[0], number, match["percent"] is not None)


def _smallest_percent(num_unique: int) -> Decimal:
    """The smallest percentage of few digits that is at least one block."""
    digits = 0
    while True:
        step = Decimal(1).scaleb(-digits)
        percent = (Decimal(100) / num_unique).quantize(step, rounding="ROUND_UP")
        if percent <= 2 * Decimal(100) / num_unique:
            return percent.normalize()
        digits += 1
