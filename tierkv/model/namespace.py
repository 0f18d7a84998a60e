"""Namespaces: whose KV a block is. A model name is not an identity; the weights are.

The fingerprint of an `Identity` is the namespace id, and the namespace id is hashed into every block key (`tierkv.model.keys`), so
blocks of different identities can never be mistaken for each other. `differences` answers "why did I miss?".
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from blake3 import blake3

from tierkv.errors import InvalidRequestError
from tierkv.model.keys import NamespaceId
from tierkv.model.layout import LAYOUT_VERSION, Layout
from tierkv.model.outcomes import Durability

IDENTITY_BYTES_LIMIT = 64 * 1024
_NAMESPACE_CONTEXT = "tierkv 2026 namespace v1"


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything that decides whether two KV blocks may be exchanged. Every field is text; unused ones stay empty.

    weights — fingerprint of the weights themselves (never their name); config — canonical model config (rope, heads, windows);
    kv_dtype — dtype and quantisation scheme of K and V; geometry — rank geometry, e.g. `tp=2/0 pp=1/0`; lora — adapter
    fingerprint; tenant, salt — separation asked for by the user. `layout` is filled in by `fingerprint`.
    """

    weights: str
    config: str = ""
    kv_dtype: str = ""
    geometry: str = ""
    lora: str = ""
    tenant: str = ""
    salt: str = ""

    def __post_init__(self) -> None:
        if not self.weights:
            raise InvalidRequestError("an identity needs the fingerprint of the weights; a model name is not one", weights="")

    def fingerprint(self, layout: Layout) -> NamespaceId:
        """The 32-byte namespace id of this identity with blocks of `layout`."""
        return NamespaceId(blake3(self.canonical(layout), derive_key_context=_NAMESPACE_CONTEXT).digest())

    def canonical(self, layout: Layout) -> bytes:
        """Canonical JSON of identity and layout: sorted keys, no spaces, UTF-8. Raises InvalidRequestError above 64 KiB."""
        parts: dict[str, object] = dict(dataclasses.asdict(self))
        parts["layout"] = {
            "version": LAYOUT_VERSION,
            "shape": list(layout.shape),
            "dtype": layout.dtype,
            "block_tokens": layout.block_tokens,
        }
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) > IDENTITY_BYTES_LIMIT:
            raise InvalidRequestError("an identity has at most 64 KiB; put a hash in its place", length=len(text))
        return text

    def differences(self, other: Identity) -> list[str]:
        """Names of the fields in which two identities differ."""
        return [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != getattr(other, f.name)]


@dataclass(frozen=True, slots=True)
class Namespace:
    """A registered namespace: its id, the layout of its blocks and its durability promise."""

    namespace_id: NamespaceId
    identity: Identity
    layout: Layout
    durability: Durability
