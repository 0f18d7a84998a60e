"""Shares of a machine: what cgroups allow, and bounds."""

import pytest

from tierkv import machine
from tierkv.settings import GIB, MIB


@pytest.fixture
def box(tmp_path, monkeypatch):
    """A machine made of files: 8 GiB available, no cgroup."""
    (tmp_path / "meminfo").write_text("MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    (tmp_path / "own").write_text("")
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(machine, "_CGROUP_ROOT", tmp_path / "cgroup")
    return tmp_path


def limit(folder, name, value):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"{value}\n")


def test_without_a_cgroup_the_kernel_decides(box):
    assert machine.available_memory_bytes() == 8 * GIB
    assert machine.default_host_bytes(box / "no tmpfs") == 2 * GIB


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


def test_a_small_machine_gets_the_least(box):
    (box / "meminfo").write_text("MemAvailable: 1024 kB\n")
    assert machine.default_host_bytes(box) == 64 * MIB


def test_the_disk_is_asked_where_the_folder_will_be(tmp_path):
    wanted = tmp_path / "not" / "there" / "yet"
    assert machine.default_disk_bytes(wanted) == machine.default_disk_bytes(tmp_path)
