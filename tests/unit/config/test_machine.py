"""Shares of a machine: what cgroups allow, and bounds."""

from types import SimpleNamespace

import pytest

from tierkv import machine
from tierkv.settings import GIB, MIB


@pytest.fixture
def box(tmp_path, monkeypatch):
    """A machine made of files: 8 GiB available, no cgroup."""
    (tmp_path / "meminfo").write_text("MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    (tmp_path / "own").write_text("")
    monkeypatch.setattr(machine, "_free_bytes", lambda _: 64 * GIB)
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(machine, "_CGROUP_ROOT", tmp_path / "cgroup")
    return tmp_path


def limit(folder, name, value):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"{value}\n")


def test_without_a_cgroup_the_kernel_decides(box):
    assert machine.available_memory_bytes() == 8 * GIB
    assert machine.default_host_bytes(box / "arena") == 2 * GIB


def test_half_of_what_is_free_beside_the_arena_is_the_most(box, monkeypatch):
    monkeypatch.setattr(machine, "_free_bytes", lambda _: 3 * GIB)
    assert machine.default_host_bytes(box / "arena") == 3 * GIB // 2


@pytest.mark.parametrize("share_of", [machine.default_host_bytes, machine.default_disk_bytes])
def test_what_a_store_holds_already_does_not_make_its_next_share_smaller(box, monkeypatch, share_of):
    fresh = share_of(box / "folder")
    held = MIB
    limit(box / "folder" / "deeper", "file", "x" * held)
    taken = machine._taken_bytes(box / "folder")
    assert taken >= held
    monkeypatch.setattr(machine, "_free_bytes", lambda _: 64 * GIB - taken)
    limit(box, "meminfo", f"MemAvailable: {(8 * GIB - taken) // 1024} kB")
    assert fresh == pytest.approx(share_of(box / "folder"), abs=4096)


def test_the_tightest_cgroup_of_the_path_decides(box):
    (box / "own").write_text("0::/user/service\n")
    root = box / "cgroup"
    limit(root / "user" / "service", "memory.max", "max")
    limit(root / "user" / "service", "memory.current", 0)
    limit(root / "user", "memory.max", 3 * GIB)
    limit(root / "user", "memory.current", GIB)
    assert machine.available_memory_bytes() == 2 * GIB


def test_the_older_cgroup_files_count_too(box):
    (box / "own").write_text("5:cpu:/x\n4:memory,hugetlb:/x\n")
    place = box / "cgroup" / "memory" / "x"
    limit(place, "memory.limit_in_bytes", GIB)
    limit(place, "memory.usage_in_bytes", GIB // 2)
    assert machine.available_memory_bytes() == GIB // 2


def test_what_there_is_in_all_is_the_machine_s_or_the_cgroup_s(box):
    assert machine.total_memory_bytes() == 16 * GIB
    (box / "own").write_text("0::/user\n")
    limit(box / "cgroup" / "user", "memory.max", 3 * GIB)
    limit(box / "cgroup" / "user", "memory.current", 2 * GIB)
    assert machine.total_memory_bytes() == 3 * GIB


def test_a_small_machine_gets_the_least(box):
    (box / "meminfo").write_text("MemAvailable: 1024 kB\n")
    assert machine.default_host_bytes(box) == 64 * MIB


def test_the_disk_is_asked_where_the_folder_will_be(tmp_path, monkeypatch):
    usage = {tmp_path: SimpleNamespace(free=10 * GIB)}
    monkeypatch.setattr("shutil.disk_usage", usage.__getitem__)
    assert machine.default_disk_bytes(tmp_path / "not" / "there" / "yet") == 2 * GIB
