"""Settings of an engine: nested scalars, checked where they are made."""

from __future__ import annotations

from dataclasses import dataclass

from tierkv.errors import InvalidRequestError

MAX_TENANT_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """max_batch_tokens — computed in one step at most; long prompts are cut into chunks of it. max_sequences — that run at once.
    max_waiting — requests that may queue. private_memory_bytes — of pages without a daemon, or while it is away. device, dtype — of
    model and pages. num_threads — of numerics; None leaves torch's own. reserve_pages — taken from the daemon ahead of need.
    ageing_s — waiting that is worth one class of priority. retry_s — how often a daemon that is away is asked for.
    """

    block_tokens: int = 16
    max_batch_tokens: int = 512
    max_sequences: int = 64
    max_waiting: int = 1024
    private_memory_bytes: int = 512 << 20
    device: str = "cpu"
    dtype: str = "float32"
    num_threads: int | None = None
    reserve_pages: int = 8
    ageing_s: float = 30.0
    retry_s: float = 5.0

    def __post_init__(self) -> None:
        counts = ("block_tokens", "max_sequences", "max_waiting", "private_memory_bytes", "reserve_pages")
        for name in counts:
            if getattr(self, name) < 1:
                raise InvalidRequestError(f"{name} must be at least 1", **{name: getattr(self, name)})
        if self.max_batch_tokens < self.max_sequences:
            raise InvalidRequestError(
                "a step needs room for a token of each sequence; raise max_batch_tokens or lower max_sequences",
                max_batch_tokens=self.max_batch_tokens,
                max_sequences=self.max_sequences,
            )
        if self.num_threads is not None and self.num_threads < 1:
            raise InvalidRequestError("num_threads must be at least 1", num_threads=self.num_threads)
        for name in ("ageing_s", "retry_s"):
            if not getattr(self, name) > 0:
                raise InvalidRequestError(f"{name} must be above 0", **{name: getattr(self, name)})
