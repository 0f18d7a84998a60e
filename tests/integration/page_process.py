"""A client process with a page pool, told what to do by lines of JSON: `[verb, argument…]` in, the answer out. Its own `__main__`.

Blocks are those of `tests.integration.test_pages`, derived from their keys.
"""

import json
import sys

from tierkv.client import connect
from tierkv.model.keys import chain_keys
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity
from tierkv.pages import PageRun

BLOCK_BYTES = 16 * 1024
LAYOUT = Layout(shape=(BLOCK_BYTES,), dtype="uint8", block_tokens=4)
IDENTITY = Identity(weights="pages")
NAMESPACE = IDENTITY.fingerprint(LAYOUT)
KEYS = chain_keys(NAMESPACE, range(4 * 24), block_tokens=4)


def content_of(key):
    return key * (BLOCK_BYTES // len(key))


class Engine:
    """What an engine does with pages."""

    def __init__(self, store):
        self.store = store
        self.pool = None

    def open(self):
        self.store.register(IDENTITY, LAYOUT)
        self.pool = self.store.open_pool(NAMESPACE, "cpu")
        return self.pool.num_pages

    def view(self, page):
        return self.pool.buffer[page * BLOCK_BYTES : (page + 1) * BLOCK_BYTES]

    def reserve(self, count):
        return self.store.reserve_pages(count)

    def save(self, count):
        """Commits the first blocks; their pages stay held."""
        keys, pages = KEYS[:count], self.store.reserve_pages(count)
        for key, page in zip(keys, pages, strict=True):
            self.view(page)[:] = content_of(key)
        assert {str(outcome) for run in self.store.commit_pages(NAMESPACE, [PageRun(keys, pages)]) for outcome in run} == {
            "committed"
        }
        return pages

    def acquire(self, count):
        """Pages, tiers and how many blocks have the right bytes; the pages stay held."""
        lease = self.store.acquire_pages(NAMESPACE, KEYS[:count])
        num_blocks = lease.wait()
        good = sum(self.view(page) == content_of(key) for key, page in zip(KEYS, lease.pages[:num_blocks], strict=False))
        return [list(lease.pages), [str(tier) for tier in lease.tiers], good]

    def release(self, pages):
        self.store.release_pages(pages)

    def scribble(self, pages):
        for page in pages:
            self.view(page)[:] = b"\xff" * BLOCK_BYTES

    def lose_session(self):
        """The stream ends, the process and its map stay."""
        self.store._attachment.current._stream.cancel()

    def is_alive(self):
        return self.store.pool_is_alive


def main(run_folder):
    with connect(run_folder, label="pages") as store:
        engine = Engine(store)
        for line in sys.stdin:
            verb, *arguments = json.loads(line)
            sys.stdout.write(json.dumps(getattr(engine, verb)(*arguments)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
