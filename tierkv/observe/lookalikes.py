"""Lookalikes: the same tokens under another namespace. Pure; says which part of the identity keeps two namespaces apart.

Equal tokens have different keys under different namespaces, so a hit that a user expects may be held next door. Without the tokens one
can only tell that a namespace has nothing and another of the same layout has; with those of a first block it is certain. The value of
a salt is never shown: it is there to keep others out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tierkv.errors import InvalidRequestError
from tierkv.model.keys import BlockKey, NamespaceId, chain_keys
from tierkv.model.namespace import Identity, Namespace

_VALUE_CHARACTERS = 24
_SECRET_FIELDS = frozenset({"salt"})


@dataclass(frozen=True, slots=True)
class FirstBlock:
    """The key that the first block of some tokens has under a namespace."""

    namespace: Namespace
    key: BlockKey


def first_blocks(namespaces: Sequence[Namespace], token_ids: Sequence[int]) -> list[FirstBlock]:
    """The first block of `token_ids` under each namespace whose blocks are not longer than that.

    Raises InvalidRequestError for token ids that cannot be.
    """
    smallest = min((namespace.layout.block_tokens for namespace in namespaces), default=0)
    if 0 < len(token_ids) < smallest:
        raise InvalidRequestError("these are fewer token ids than a block has", token_ids=len(token_ids), block_tokens=smallest)
    found: list[FirstBlock] = []
    for namespace in namespaces:
        block_tokens = namespace.layout.block_tokens
        keys = chain_keys(namespace.namespace_id, token_ids[:block_tokens], block_tokens=block_tokens)
        found += [FirstBlock(namespace, key) for key in keys]
    return found


def differences(own: Namespace, other: Namespace) -> list[str]:
    """Names of the parts in which two namespaces differ."""
    return own.identity.differences(other.identity) + (["layout"] if own.layout != other.layout else [])


def describe(own: Namespace, other: Namespace) -> str:
    """The parts in which two namespaces differ, with the values of both."""
    named = [_describe_field(name, own.identity, other.identity) for name in own.identity.differences(other.identity)]
    if own.layout != other.layout:
        named.append(f"layout ({_layout_of(own)} here, {_layout_of(other)} there)")
    return ", ".join(named)


def nearest(own: Namespace, held: Mapping[NamespaceId, int], namespaces: Sequence[Namespace]) -> Namespace | None:
    """Of the namespaces of equal layout that hold blocks, the one with the fewest differences, then with the most blocks."""
    others = [
        other
        for other in namespaces
        if other.namespace_id != own.namespace_id and other.layout == own.layout and held.get(other.namespace_id, 0) > 0
    ]
    return min(others, key=lambda other: (len(differences(own, other)), -held[other.namespace_id]), default=None)


def _describe_field(name: str, own: Identity, other: Identity) -> str:
    if name in _SECRET_FIELDS:
        return f"{name} (values are not shown)"
    return f"{name} ({_shortened(getattr(own, name))} here, {_shortened(getattr(other, name))} there)"


def _shortened(value: str) -> str:
    return f"'{value[: _VALUE_CHARACTERS - 1]}…'" if len(value) > _VALUE_CHARACTERS else f"'{value}'"


def _layout_of(namespace: Namespace) -> str:
    layout = namespace.layout
    return f"{'×'.join(map(str, layout.shape))} {layout.dtype} of {layout.block_tokens} tokens"
