"""The contract suite of `tierkv.interface.BlockStore`: subclass it, supply `rig`, and every sentence of the contract has a test.

```python
class TestMyStore(StoreContract):
    @pytest.fixture
    def rig(self) -> Iterator[StoreRig]: ...
```

Values derive from keys, so that any answer can be judged; each test has a namespace of its own, so that one store serves them all.
"""

from __future__ import annotations

from tierkv.testing.store_rig import BLOCK_BYTES, LAYOUT, StoreRig, content_of
from tierkv.testing.store_suite_hints import HintsContract
from tierkv.testing.store_suite_limits import LimitsContract
from tierkv.testing.store_suite_loading import LoadingContract
from tierkv.testing.store_suite_saving import SavingContract

__all__ = ["BLOCK_BYTES", "LAYOUT", "StoreContract", "StoreRig", "content_of"]


class StoreContract(SavingContract, LoadingContract, LimitsContract, HintsContract):
    """Every test; `rig` is the subclass's fixture."""
