"""The contract of page stores, for every implementation: one test for each sentence of `tierkv.pages.PageStore`, more where one says much.

An implementer subclasses `PageContract` with a fixture `rig`. Blocks are derived from their keys, so that any reader can judge any page.
"""

from tierkv.testing.page_rig import BLOCK_BYTES, PageRig
from tierkv.testing.page_suite_finding import FindingPages
from tierkv.testing.page_suite_holding import HoldingPages
from tierkv.testing.page_suite_sinking import SinkingPages

__all__ = ["BLOCK_BYTES", "PageContract", "PageRig"]


class PageContract(FindingPages, HoldingPages, SinkingPages):
    """What a page store promises; `rig` is the subclass's fixture."""
