"""Products of rows with a weight matrix, the way this machine does them best.

On a CPU in float32 the matrix is packed once for oneDNN. What `torch.nn.functional.linear` calls there, MKL, multiplies one row with a
matrix on one thread only, and a few rows not much faster than one after the other; with 8 rows, as in a batch of decodes, the packed
matrix was 1.5 times faster on one thread and 2 to 4 times on two, and prompts of 1,024 tokens took the same time. The operators are
those of torch's own compiler, `torch.ops.mkldnn`; where they are missing, and for everything else, the plain function does.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Linear(Protocol):
    """Rows (tokens, in) to (tokens, out)."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor: ...


class PlainLinear:
    """weight — (out, in); bias — (out,) or None."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(rows, self._weight, self._bias)


class PackedLinear:
    """The same in oneDNN's own order of the weights; the given matrix is copied. float32 on the CPU only."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        # No batch size: packed for one, it is reordered at every other.
        self._weight: Any = torch.ops.mkldnn._reorder_linear_weight(weight, None)  # noqa: SLF001 - the only name it has
        self._bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(  # noqa: SLF001 - as above
            rows, self._weight, self._bias, "none", [], ""
        )
        return product


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The fastest form of a matrix (out, in) and its bias (out,) on their device."""
    return PackedLinear(weight, bias) if _can_pack(weight) else PlainLinear(weight, bias)


def _can_pack(weight: torch.Tensor) -> bool:
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    is_available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch has no annotation
    return is_available and all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
