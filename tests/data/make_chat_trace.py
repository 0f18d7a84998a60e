"""Makes `chat_trace.jsonl`: 12 conversations and 6 agents over two shared system prompts, 64-token blocks, partial last blocks listed.

Deterministic: `python tests/data/make_chat_trace.py FILE` writes the same bytes again. A conversation's next prompt holds the whole
one before, its answer and a new question, so that each block is named by the conversation's text up to its end.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tierkv.simulator.trace import TraceWriter

SEED = 5
BLOCK_TOKENS = 64
SYSTEM_TOKENS = {"chat": 400, "agent": 1150}


class Conversation:
    """Text that grows: a list of (who wrote it, tokens)."""

    def __init__(self, session: int, kind: str, turns: int, start_ms: int) -> None:
        self.session, self.kind, self.turns, self.next_ms = session, kind, turns, start_ms
        self.parts: list[tuple[str, int]] = [(kind, SYSTEM_TOKENS[kind])]

    def block_names(self) -> list[str]:
        """One name for each block, the partial one at the end included: who wrote up to there, and how far."""
        names, written, text = [], 0, ""
        for writer, tokens in self.parts:
            first, written = written // BLOCK_TOKENS, written + tokens
            text = f"{text}/{writer}"
            names[first:] = [
                f"{text}:{idx}:{min(written, (idx + 1) * BLOCK_TOKENS)}" for idx in range(first, -(-written // BLOCK_TOKENS))
            ]
        return names


def make(path: Path) -> None:
    """Writes the trace to `path`."""
    chance = random.Random(SEED)
    waiting = [Conversation(n, "chat", chance.randint(3, 14), chance.randrange(600_000)) for n in range(12)]
    waiting += [Conversation(12 + n, "agent", chance.randint(12, 22), chance.randrange(400_000)) for n in range(6)]
    with TraceWriter(path) as trace:
        while waiting:
            talk = min(waiting, key=lambda talk: (talk.next_ms, talk.session))
            is_agent = talk.kind == "agent"
            talk.parts.append((f"{talk.session}", chance.randint(80, 400) if is_agent else chance.randint(20, 300)))
            answer = chance.randint(20, 150)
            input_tokens = sum(tokens for _, tokens in talk.parts)
            trace.append(
                talk.block_names(), timestamp_ms=talk.next_ms, input_tokens=input_tokens, output_tokens=answer, session=talk.session
            )
            talk.parts.append((f"{talk.session}", answer))
            talk.next_ms += chance.randint(2_000, 9_000) if is_agent else chance.randint(20_000, 200_000)
            talk.turns -= 1
            if talk.turns == 0:
                waiting.remove(talk)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
