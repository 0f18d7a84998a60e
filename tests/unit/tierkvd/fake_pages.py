"""The page verbs of a store as a test wants them: answers are set, calls are kept."""

import os

from tierkv.answers import PageAcquisition, PageCommit, PoolView

MEMORY_BYTES = 64 << 10
PAGE_BYTES = 4096


class FakePages:
    """Stands in the place of a store's own page verbs. refusal — what `open_pool` raises; ended — sessions, in the order of `end_pages`."""

    def __init__(self, store):
        self.memory = os.memfd_create("pool")
        os.ftruncate(self.memory, MEMORY_BYTES)
        self.refusal = None
        self.page_bytes = PAGE_BYTES
        self.opened, self.ended, self.committed, self.released = [], [], [], []
        self.commit = PageCommit([], None)
        self.acquisition = PageAcquisition((), (), (), None)
        for verb in ("open_pool", "reserve_pages", "commit_pages", "acquire_pages", "release_pages", "end_pages"):
            setattr(store, verb, getattr(self, verb))

    def open_pool(self, session, namespace_id, device):
        if self.refusal is not None:
            raise self.refusal
        self.opened.append((session, namespace_id, device))
        fd, handle = (None, b"handle") if device == "cuda:0" else (self.memory, b"")
        return PoolView(device, MEMORY_BYTES, self.page_bytes, MEMORY_BYTES // self.page_bytes, fd, handle)

    def reserve_pages(self, session, count):
        return list(range(count))

    def commit_pages(self, session, namespace_id, runs, hints):
        self.committed.append((namespace_id, runs, hints))
        return self.commit

    def acquire_pages(self, session, namespace_id, keys, hints):
        return self.acquisition

    def release_pages(self, session, pages):
        self.released.append(pages)

    def end_pages(self, session):
        self.ended.append(session)
