"""What single tokens are called where they are told one by one, beside their log-probabilities."""

from __future__ import annotations

import functools
from typing import Any

_HALF = "\ufffd"
_MAX_NAMES = 100_000


class TokenNames:
    """Names of the tokens of one tokenizer of transformers; they are kept, so that a token that comes again costs nothing."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special_ids = frozenset(tokenizer.all_special_ids)
        # Behind another token a leading space stays where it is.
        self._anchor = list(tokenizer.encode("a", add_special_tokens=False))[-1:]
        self._anchor_text = tokenizer.decode(self._anchor)
        self._names: dict[int, tuple[str, bytes]] = {}

    def of(self, token_id: int) -> tuple[str, bytes]:
        r"""Text and bytes of a token. One that holds part of a character is called by its bytes, as `bytes:\xf0\x9f`."""
        name = self._names.get(token_id)
        if name is None:
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            name = self._names[token_id] = self._find(token_id)
        return name

    def _find(self, token_id: int) -> tuple[str, bytes]:
        piece = str(self._tokenizer.convert_ids_to_tokens(token_id))
        if token_id in self._special_ids:
            return piece, piece.encode()
        decoded = self._tokenizer.decode([*self._anchor, token_id], clean_up_tokenization_spaces=False)
        text = decoded.removeprefix(self._anchor_text)
        if _HALF not in text:
            return text, text.encode()
        raw = _bytes_of(piece)
        if raw is None:
            return text, text.encode()
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), raw


def _bytes_of(piece: str) -> bytes | None:
    """The bytes that a vocabulary entry stands for, as byte-level and byte-fallback vocabularies write them."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes.fromhex(piece[3:5])
    alphabet = _byte_alphabet()
    return bytes(alphabet[letter] for letter in piece) if all(letter in alphabet for letter in piece) else None


@functools.cache
def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes printable bytes as themselves, and the others, in order, as the letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}
