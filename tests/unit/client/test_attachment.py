"""The attachment at its edges: closed while it attaches, and a breaker that holds for every verb."""

from __future__ import annotations

from typing import Any

import pytest

from tierkv.client.address import RemoteAddress
from tierkv.client.attachment import Attachment
from tierkv.client.sync import Client
from tierkv.client.verbs import Registration
from tierkv.errors import ClosedError, UnavailableError
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.testing.clock import ManualClock

NOWHERE = RemoteAddress("127.0.0.1:1", None, None)


class _ClosingLock:
    """A lock that is had only after somebody else closed the attachment."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    def acquire(self, timeout: float) -> bool:
        self._attachment._is_closed = True
        return True

    def release(self) -> None:
        pass


def test_nothing_is_attached_for_a_client_that_was_closed_meanwhile() -> None:
    attachment = Attachment(NOWHERE, label="", timeout_s=1.0, clock=ManualClock())
    lock: Any = _ClosingLock(attachment)
    attachment._lock = lock
    with pytest.raises(ClosedError):
        attachment.link(attachment.deadline(None))


def test_an_open_breaker_spares_a_streamed_put_its_deadline() -> None:
    client = Client(NOWHERE, clock=ManualClock())
    layout, identity = Layout((32,), "uint8", 1), Identity(weights="w")
    namespace_id = identity.fingerprint(layout)
    client._attachment.known[namespace_id] = Registration(identity, layout, None)

    class Hung:
        is_alive = True
        arena = None

        @property
        def stub(self) -> Any:
            raise AssertionError("the daemon was asked")

        def close(self) -> None:
            pass

    link: Any = Hung()
    client._attachment._link = link
    for _ in range(3):
        client._attachment._breaker.failed()
    with pytest.raises(UnavailableError, match="not asked again"):
        client.put(namespace_id, chain_keys(namespace_id, range(1), block_tokens=1), [memoryview(bytes(32))])
    client.close()
