"""The table of registered namespaces, bounded, and persistent where there is a disk tier."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from tierkv.errors import CapacityError, DataError, InvalidRequestError
from tierkv.model.keys import NamespaceId
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity, Namespace
from tierkv.model.outcomes import Durability

Persist = Callable[[NamespaceId, bytes, str], None]


class NamespaceTable:
    """Namespaces by id. `persist(namespace_id, canonical_identity, durability)` keeps one beyond this process."""

    def __init__(self, *, limit: int, persist: Persist | None) -> None:
        self._limit = limit
        self._persist = persist
        self._namespaces: dict[NamespaceId, Namespace] = {}

    def __len__(self) -> int:
        return len(self._namespaces)

    def __contains__(self, namespace_id: NamespaceId) -> bool:
        return namespace_id in self._namespaces

    def all(self) -> list[Namespace]:
        """Every registered namespace, oldest first."""
        return list(self._namespaces.values())

    def get(self, namespace_id: NamespaceId) -> Namespace:
        """Raises InvalidRequestError for an id that is not registered."""
        namespace = self._namespaces.get(namespace_id)
        if namespace is None:
            raise InvalidRequestError("this namespace is not registered; register its identity first", namespace=namespace_id)
        return namespace

    def durability_of(self, namespace_id: NamespaceId) -> Durability:
        """The promise of a namespace; VOLATILE for one that is not (yet) registered."""
        namespace = self._namespaces.get(namespace_id)
        return Durability.VOLATILE if namespace is None else namespace.durability

    def register(self, identity: Identity, layout: Layout, durability: Durability) -> Namespace:
        """Finds or adds a namespace; a known one takes on the durability given last. May wait for the disk when it is new."""
        namespace_id = identity.fingerprint(layout)
        known = self._namespaces.get(namespace_id)
        if known is not None and known.durability is durability:
            return known
        if known is None and len(self._namespaces) >= self._limit:
            raise CapacityError("the table of namespaces is full", limit=self._limit)
        namespace = Namespace(namespace_id, identity, layout, durability)
        if self._persist is not None:
            self._persist(namespace_id, identity.canonical(layout), durability.value)
        self._namespaces[namespace_id] = namespace
        return namespace

    def restore(self, rows: Iterable[tuple[NamespaceId, bytes, str]]) -> None:
        """Takes in what an earlier process persisted. Raises DataError for a row whose content is not that of its id."""
        for namespace_id, canonical, durability in rows:
            namespace = _parse(canonical, durability)
            if namespace.namespace_id != namespace_id:
                raise DataError("a stored namespace does not match its id", namespace=namespace_id)
            self._namespaces[namespace_id] = namespace


def _parse(canonical: bytes, durability: str) -> Namespace:
    try:
        parts = json.loads(canonical)
        layout = parts.pop("layout")
        identity = Identity(**parts)
        shape = Layout(tuple(layout["shape"]), layout["dtype"], layout["block_tokens"])
        return Namespace(identity.fingerprint(shape), identity, shape, Durability(durability))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError("a stored namespace cannot be read", content=canonical[:40]) from error
