"""Codecs by name and by number."""

import subprocess
import sys

import pytest

from tierkv.codecs.registry import CODEC_NAMES, codec_by_id, codec_by_name
from tierkv.errors import DataError, InvalidRequestError


def test_numbers_and_names_are_those_of_the_format() -> None:
    assert [(codec_by_id(number).codec_id, codec_by_id(number).name) for number in (0, 1)] == [(0, "identity"), (1, "planes+zstd")]
    assert [codec_by_name(name) for name in CODEC_NAMES] == [codec_by_id(number) for number in range(len(CODEC_NAMES))]


def test_an_unknown_name_is_the_callers_mistake_and_the_known_ones_are_listed() -> None:
    with pytest.raises(InvalidRequestError, match=r"codec='zip'.*identity, planes\+zstd"):
        codec_by_name("zip")


@pytest.mark.parametrize("codec_id", [-1, 2, 65535])
def test_an_unknown_number_makes_the_block_unreadable(codec_id: int) -> None:
    with pytest.raises(DataError, match=rf"codec='{codec_id}'.*0 identity, 1 planes\+zstd"):
        codec_by_id(codec_id)


def test_identity_needs_no_zstandard() -> None:
    program = "import sys; from tierkv.codecs.registry import codec_by_id; codec_by_id(0); sys.exit('zstandard' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
