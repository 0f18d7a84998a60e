"""How many tokens a block of a trace has, told from the lengths of its prompts.

A prompt of L tokens in blocks of B has floor(L/B) ids where only full blocks are listed, ceil(L/B) where the rest is listed too.
"""

from __future__ import annotations

_MAX_BLOCK_TOKENS = 1 << 20


class BlockSizeGuess:
    """Narrows B with every prompt seen: both forms together allow L/(n+1) < B < L/(n-1) for a prompt of n blocks."""

    def __init__(self) -> None:
        self._at_least = 1
        self._at_most = _MAX_BLOCK_TOKENS
        self._num_seen = 0

    def see(self, input_tokens: int, num_blocks: int) -> None:
        """One more prompt; O(1)."""
        self._num_seen += 1
        self._at_least = max(self._at_least, input_tokens // (num_blocks + 1) + 1)
        if num_blocks > 1:
            self._at_most = min(self._at_most, -(-input_tokens // (num_blocks - 1)) - 1)

    def block_tokens(self) -> int | None:
        """The smallest power of two that fits every prompt, else the size with most factors of two; None where nothing fits."""
        if self._num_seen == 0 or self._at_least > self._at_most:
            return None
        power = 1 << (self._at_least - 1).bit_length()
        if power <= self._at_most:
            return power
        step = power
        while self._at_most // step * step < self._at_least:
            step //= 2
        return self._at_most // step * step
