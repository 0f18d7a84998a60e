"""Every codec of the package passes the contract suite."""

import pytest

from tierkv.codecs.base import BlockCodec
from tierkv.codecs.registry import CODEC_NAMES, codec_by_name, planes_zstd
from tierkv.testing.codec_suite import CodecContract


class TestIdentityContract(CodecContract):
    detects_damage = False

    def make(self) -> BlockCodec:
        return codec_by_name("identity")


class TestPlanesZstdContract(CodecContract):
    def make(self) -> BlockCodec:
        return codec_by_name("planes+zstd")


class TestPlanesZstdAtAnotherLevelContract(CodecContract):
    def make(self) -> BlockCodec:
        return planes_zstd(level=9)


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_every_registered_codec_is_tested_here(name: str) -> None:
    made = {suite().make().name for suite in (TestIdentityContract, TestPlanesZstdContract)}
    assert name in made
