"""SIGKILL under traffic, then a look at the policies of the next process: what they knew, they know, as far as the blocks are there."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter

import pytest
import xxhash

from tests.crash.test_kill_points import BLOCK_BYTES, IDENTITY, LAYOUT, content_of, settings_in
from tierkv.assemble import open_tiered_store
from tierkv.clock import SystemClock
from tierkv.embedded import EmbeddedStore
from tierkv.model.keys import chain_keys
from tierkv.model.outcomes import Durability
from tierkv.policies import ArcPolicy
from tierkv.policy_state.files import FolderFiles
from tierkv.policy_state.replaying import restore
from tierkv.settings import DiskSettings, PolicyName
from tierkv.testing.deadline import wait_until

NAMESPACE = IDENTITY.fingerprint(LAYOUT)


def opened(settings):
    tiered = open_tiered_store(settings, SystemClock())
    return EmbeddedStore(tiered, clock=SystemClock(), discard_arena=False)


def image_of(policy):
    """What a policy knows, as JSON tells it."""
    image = policy.export_image()
    return {
        "t1": [key.hex() for key in image.t1],
        "t2": [key.hex() for key in image.t2],
        "ghosts": [[key.hex(), key in image.in_b2] for key in image.ghosts],
        "weights": {key.hex(): weight for key, weight in image.weight_of().items()},
        "moments": {key.hex(): moment for key, moment in image.touched_at.items()},
        "steering": [image.now, image.p, image.w, image.hits_b1, image.hits_b2],
    }


def policies_of(store):
    books = store.tiered._books
    return {"host": books.host_policy.inner, "disk": books.disk_policy.inner}


def converse(store, num_requests=60):
    """Conversations that come back, longer than before, on a host tier that cannot hold them all."""
    store.register(IDENTITY, LAYOUT)
    for request in range(num_requests):
        is_single = request % 5 == 0 or request >= num_requests - 2  # those at the end are certainly still there
        conversation, turn = (1000 + request, 0) if is_single else (request % 7, request // 7)
        keys = chain_keys(NAMESPACE, [conversation, *range(4 * (2 + 3 * turn) - 1)], block_tokens=4)
        lease = store.acquire(NAMESPACE, keys)
        num_held = lease.num_blocks
        store.release(lease)
        rest = keys[num_held:]
        parent = keys[num_held - 1] if num_held else None
        store.put(NAMESPACE, rest, [memoryview(content_of(key)) for key in rest], parent=parent, durability=Durability.VOLATILE)
        store.flush()  # what is still on its way to disk leaves no room for others


def converse_until_killed(root):
    """Runs in a process of its own: prints what its policies know, and ends when its files tell the same."""
    store = opened(settings_in(root))
    converse(store)
    store.flush()
    policies = policies_of(store)

    def is_written(tier):
        files, copy = FolderFiles(root / "data" / "policy", tier), ArcPolicy(1)
        restore(copy, files.read_snapshot(), files.read_log(), xxhash.xxh3_128_digest)
        return copy.export_image().is_same(policies[tier].export_image())

    wait_until(lambda: all(map(is_written, policies)), timeout_s=30, what="the state of the policies")
    print(json.dumps({tier: image_of(policy) for tier, policy in policies.items()}), flush=True)  # noqa: T201 - its parent reads it
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of a killed process, and what its policies knew."""
    root = tmp_path_factory.mktemp("killed")
    script = "import sys, pathlib; from tests.crash.test_warm_policy import *\nconverse_until_killed(pathlib.Path(sys.argv[1]))\n"
    process = subprocess.run(
        [sys.executable, "-c", script, str(root)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    return root, json.loads(process.stdout)


@pytest.fixture
def root(killed, tmp_path):
    shutil.copytree(killed[0], tmp_path / "copy")
    return tmp_path / "copy"


def test_after_a_kill_the_policies_know_what_they_knew(killed, root):
    store = opened(settings_in(root))
    found = json.loads(json.dumps({tier: image_of(policy) for tier, policy in policies_of(store).items()}))
    store.tiered.check_integrity()
    assert store.tiered.stats().degraded == ()
    store.close()
    for tier in found:
        for name, value in found[tier].items():
            assert value == killed[1][tier][name], (tier, name)
    assert all(found["host"][name] for name in ("t1", "t2", "ghosts")), {name: len(found["host"][name]) for name in found["host"]}


def test_blocks_that_are_gone_become_ghosts(killed, root):
    shutil.rmtree(root / "arena")
    store = opened(settings_in(root))
    host = policies_of(store)["host"].export_image()
    before = killed[1]["host"]
    assert len(host.t1) == len(host.t2) == 0
    last = host.ghosts[-len(before["t1"]) - len(before["t2"]) :]
    assert {key.hex() for key in last} == {*before["t1"], *before["t2"]}
    assert {key.hex() for key in last if key in host.in_b2} == {*before["t2"]}
    store.tiered.check_integrity()
    store.close()


def test_a_smaller_disk_keeps_what_the_policy_would_have_kept(killed, root):
    settings = settings_in(root)
    blocks_kept = 20
    smaller = dataclasses.replace(settings.disk, capacity_bytes=blocks_kept * (BLOCK_BYTES + 4096))
    shutil.rmtree(root / "arena")
    store = opened(dataclasses.replace(settings, disk=smaller))
    disk = policies_of(store)["disk"]
    assert 0 < len(disk) <= blocks_kept
    assert {key.hex() for key in disk} <= {*killed[1]["disk"]["t1"], *killed[1]["disk"]["t2"]}
    store.tiered.check_integrity()
    store.close()


@pytest.mark.parametrize("name", ["host.snapshot", "disk.snapshot"])
def test_a_damaged_state_is_a_cold_start_that_loses_no_block(killed, root, name):
    path = root / "data" / "policy" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)
    store = opened(settings_in(root))
    tier = name.removesuffix(".snapshot")
    stats = store.tiered.stats()
    assert stats.counters["policy_state_lost"] == 1
    assert stats.degraded == (f"the policy of the {tier} tier starts cold: a snapshot does not have its checksum",)
    known = {key for policy in killed[1].values() for key in policy["t1"] + policy["t2"]}
    assert known <= {entry.key.hex() for entry in store.tiered._books.index}
    assert policies_of(store)[tier].state().b1_keys == 0
    store.tiered.check_integrity()
    store.close()


def test_another_kind_of_policy_starts_cold(killed, root):
    store = opened(dataclasses.replace(settings_in(root), policy=PolicyName.LRU))
    assert store.tiered.stats().counters["policy_state_lost"] == 2
    known = {*killed[1]["disk"]["t1"], *killed[1]["disk"]["t2"]}
    assert {key.hex() for key in policies_of(store)["disk"]} == known
    store.tiered.check_integrity()
    store.close()


def test_an_orderly_stop_writes_everything_down(tmp_path):
    store = opened(settings_in(tmp_path))
    converse(store, 30)
    policies = policies_of(store)
    store.close()
    known = {tier: image_of(policy) for tier, policy in policies.items()}
    store = opened(settings_in(tmp_path))
    assert {tier: image_of(policy) for tier, policy in policies_of(store).items()} == known
    store.close()


def test_a_store_without_a_disk_keeps_the_policy_of_its_arena(tmp_path):
    settings = dataclasses.replace(settings_in(tmp_path), disk=DiskSettings(capacity_bytes=0), durability=Durability.VOLATILE)
    store = opened(settings)
    converse(store, 30)
    known = image_of(store.tiered._books.host_policy.inner)
    store.close()
    store = opened(settings)
    assert image_of(store.tiered._books.host_policy.inner)["t2"] == known["t2"]
    assert Counter(os.listdir(tmp_path / "data" / "policy")) == Counter(["host.snapshot", "host.log"])
    store.close()
