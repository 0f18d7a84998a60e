"""The state of a policy as it was written by earlier versions. A failure here means a cold start: move the version instead."""

import struct
from collections import Counter
from pathlib import Path
from threading import RLock

import pytest
import xxhash

from tierkv.model.chains import Chains
from tierkv.policies import ArcPolicy, Cause
from tierkv.policy_state.replaying import restore
from tierkv.policy_state.scribe import PolicyScribe
from tierkv.testing.policy_traffic import MemoryFiles, key_of

GOLDEN = Path(__file__).parent
K = [key_of(number) for number in range(20)]


def golden(name):
    return bytes.fromhex((GOLDEN / f"policy_v1_{name}.hex").read_text(encoding="ascii"))


def nobody(_key):
    return False


def written():
    """A history with every kind of event in its log, on a policy of capacity 8."""
    files = MemoryFiles()
    scribe = PolicyScribe("host", ArcPolicy(8, Chains()), files, RLock(), xxhash.xxh3_128_digest, Counter())
    policy = scribe.policy
    policy.admit(K[1:5], [1, 2, 1, 1], nobody, cause=Cause.SAVE)
    policy.on_access(K[1:3])
    policy.make_room(4, nobody)
    scribe.write()
    policy.on_access([K[1]])
    policy.on_access([K[1]])
    policy.admit(K[5:7], [1, 1], nobody, cause=Cause.SAVE, head=[K[1]])
    policy.on_access([K[1], K[5], K[6]])
    policy.on_access([K[6], K[1]])
    scribe.write()
    policy.admit(K[7:9], [2, 1], nobody, cause=Cause.PREFETCH)
    policy.make_room(2, nobody)
    policy.on_remove(K[6])
    scribe.write()
    return files, policy.inner


@pytest.mark.parametrize("name", ["snapshot", "log"])
def test_the_bytes_are_those_of_version_1(name):
    assert getattr(written()[0], name) == golden(name)


def test_version_1_is_read():
    policy = ArcPolicy(8, Chains())
    assert restore(policy, golden("snapshot"), golden("log"), xxhash.xxh3_128_digest).problem == ""
    assert policy.export_image().is_same(written()[1].export_image())
    image = policy.export_image()
    assert (image.t1, image.t2) == ([K[7]], [K[1]])
    assert (image.ghosts, image.in_b2) == ([K[4], K[3], K[2], K[5], K[8]], {K[2], K[5]})
    assert image.weight_of() == {K[7]: 2, K[1]: 1, K[4]: 1, K[3]: 1, K[2]: 2, K[5]: 1, K[8]: 1}
    assert (image.now, image.touched_at[K[7]], image.p, image.w) == (7, 7, 0.0, 1.0)
    assert image.touched_at[K[1]] == 7


def test_the_fields_of_a_snapshot_lie_where_the_format_says():
    content = written()[0].snapshot
    assert struct.unpack_from("<8sHHI16sQQQddQQIIII24x", content) == (
        *(b"TKVPSNAP", 1, 160, 1, b"arc-age".ljust(16, b"\0"), 1),
        *(8, 2, 0.0, 1.0, 0, 0),  # capacity, now, p, w, hits
        *(0, 1, 2, 1),  # lengths of T1, T2, B1, B2
    )
    assert content[144:160] == xxhash.xxh3_128_digest(content[:144])
    assert content[128:144] == xxhash.xxh3_128_digest(content[160:])
    keys, rest = content[160 : 160 + 4 * 32], content[160 + 4 * 32 :]
    assert keys == K[1] + K[4] + K[3] + K[2]
    assert struct.unpack("<4QqIII3B", rest) == (1, 1, 1, 2, 2, 1, (1 << 32) - 1, 0, 0, 0, 1)
