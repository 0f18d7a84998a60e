"""A store of pages that can go away, come back empty, be slow, and have pages in other hands."""

from dataclasses import dataclass

from tierkv.errors import UnavailableError
from tierkv.model.outcomes import MissReason, TierName
from tierkv.paging.private_pages import PrivatePages


@dataclass
class PendingLease:
    """A prefix on its way from the host; `num_blocks` of it arrive once `settle` is called."""

    pages: tuple[int, ...]
    num_blocks: int
    is_settled: bool = False
    miss: MissReason | None = None

    @property
    def tiers(self):
        return (TierName.HOST,) * len(self.pages)

    @property
    def num_ready(self):
        return self.num_blocks if self.is_settled else 0

    def settle(self, num_blocks=None):
        self.num_blocks = len(self.pages) if num_blocks is None else num_blocks
        self.is_settled = True


class FakeDaemon:
    """is_away — every call raises; is_pending — leases have to be settled by hand."""

    def __init__(self, memory_bytes):
        self.memory_bytes = memory_bytes
        self.is_away = False
        self.is_pending = False
        self.pool_is_alive = True
        self.calls = []
        self.leases = []
        self.restart()

    def restart(self):
        """Another life: nothing of the former one is left."""
        self.inner = PrivatePages(self.memory_bytes)
        self.is_away = False

    def go(self):
        self.is_away = True

    def register(self, identity, layout, *, durability=None, timeout_s=None):
        return self._called("register").register(identity, layout)

    def open_pool(self, namespace_id, device, *, timeout_s=None):
        self.pool = self._called("open_pool").open_pool(namespace_id, device)
        self.pool_is_alive = True
        return self.pool

    def close_pool(self):
        """Refused while anybody still sees the memory."""
        self.calls.append("close_pool")
        self.pool.buffer.release()

    def reserve_pages(self, count, *, timeout_s=None):
        return self._called("reserve_pages").reserve_pages(count)

    def commit_pages(self, namespace_id, runs, *, hints=None, timeout_s=None):
        return self._called("commit_pages").commit_pages(namespace_id, runs)

    def acquire_pages(self, namespace_id, keys, *, hints=None, timeout_s=None):
        lease = self._called("acquire_pages").acquire_pages(namespace_id, keys)
        if not self.is_pending:
            return lease
        self.leases.append(PendingLease(lease.pages, len(lease.pages)))
        return self.leases[-1]

    def release_pages(self, pages):
        self._called("release_pages").release_pages(pages)

    def close(self):
        self.inner.close()

    def _called(self, verb):
        self.calls.append(verb)
        if self.is_away:
            raise UnavailableError("the daemon is away")
        return self.inner
