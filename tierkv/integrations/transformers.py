"""Two lines that let `generate` of a Hugging Face causal language model keep and reuse its keys and values.

    store = tierkv.connect()            # or tierkv.open_store("cache-folder", …), which needs no daemon
    attach(model, store)

From then on `model.generate(…)` begins with the longest prefix of the prompt that the store holds, for this process and every later
one, and saves what it computed. Same arguments, same results. What cannot be cached runs as before, and says why once.
"""

from __future__ import annotations

from typing import Any

from tierkv.errors import InvalidRequestError
from tierkv.integrations.hf.attachment import Attachment, AttachOptions, Counters, LastRequest
from tierkv.interface import BlockStore

__all__ = ["Attachment", "Counters", "LastRequest", "attach", "detach"]

BLOCK_TOKENS = 16
WORKSPACE_BYTES = 256 << 20


def attach(
    model: Any,
    store: BlockStore,
    *,
    block_tokens: int = BLOCK_TOKENS,
    tenant: str = "",
    salt: str = "",
    workspace_bytes: int = WORKSPACE_BYTES,
    timeout_s: float | None = None,
) -> Attachment:
    """Wraps `model.generate`. Runs one token through the model, and reads its weights once for their fingerprint.

    model — a loaded causal language model of transformers 5 (or a PEFT model around one), on any device; its `generate` is replaced
    on this instance only. store — an embedded store or a client, borrowed: close it after `detach`.
    block_tokens — tokens per block: smaller ones reuse more of a prompt's end, larger ones cost less per token.
    tenant, salt — separate what must not be shared; equal values share. workspace_bytes — host memory kept warm for restored caches.
    timeout_s — bound of each call to the store; None: the store's own.

    Returns the handle: `counters`, `last` (what became of the last call), `refusal` (why nothing can be cached, None when it can)
    and `close()`. Raises InvalidRequestError for a model that is attached already, for block_tokens below 1 and for weights without
    memory; an unsupported model raises nothing, it runs uncached.
    """
    if attachment_of(model) is not None:
        raise InvalidRequestError("this model is attached already; detach it first", model=type(model).__name__)
    if block_tokens < 1:
        raise InvalidRequestError("block_tokens must be at least 1", block_tokens=block_tokens)
    attachment = Attachment(model, store, AttachOptions(block_tokens, tenant, salt, workspace_bytes, timeout_s))
    attachment.open()
    return attachment


def detach(model: Any) -> None:
    """Gives the model its own `generate` back. A model that is not attached stays as it is."""
    attachment = attachment_of(model)
    if attachment is not None:
        attachment.close()


def attachment_of(model: Any) -> Attachment | None:
    """The handle of an attached model, else None."""
    owner = getattr(model.__dict__.get("generate"), "__self__", None)
    return owner if isinstance(owner, Attachment) else None
