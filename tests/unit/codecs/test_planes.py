"""Byte planes: the bytes before and after, and equality with a plain transpose."""

import numpy as np
import pytest

from tierkv.codecs.planes import BytePlanes


@pytest.mark.parametrize(
    ("itemsize", "planes"), [(1, "00 01 02 03 04 05 06 07"), (2, "00 02 04 06 01 03 05 07"), (4, "00 04 01 05 02 06 03 07")]
)
def test_byte_i_of_every_element_stands_together(itemsize: int, planes: str) -> None:
    assert bytes(BytePlanes().encode(memoryview(bytes(range(8))), itemsize)).hex(" ") == planes


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_agrees_with_a_transpose(itemsize: int) -> None:
    source = np.random.default_rng(itemsize).bytes(4 * 257)
    planes = BytePlanes().encode(memoryview(source), itemsize)
    assert bytes(planes) == np.frombuffer(source, np.uint8).reshape(-1, itemsize).T.tobytes()
    if itemsize > 1:
        target = bytearray(len(source))
        BytePlanes().decode(planes, memoryview(target), itemsize)
        assert bytes(target) == source
