"""The leak check finds what it must find, by name, and nothing else."""

import os
import threading

from tierkv.testing import leaks


def test_nothing_is_found_where_nothing_changed():
    before = leaks.take_snapshot()
    assert leaks.find_leaks(before) == []


def test_a_running_thread_is_found_until_it_ends():
    before = leaks.take_snapshot()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten")
    thread.start()
    try:
        assert leaks.find_leaks(before) == ["thread 'forgotten'"]
    finally:
        stop.set()
        thread.join()
    assert leaks.wait_for_none(before, timeout_s=30) == []


def test_an_open_file_is_found_until_it_is_closed(tmp_path):
    path = tmp_path / "segment"
    before = leaks.take_snapshot()
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        assert leaks.find_leaks(before) == [f"descriptor {descriptor} of {path}"]
    finally:
        os.close(descriptor)
    assert leaks.find_leaks(before) == []


def test_a_memfd_is_a_leak_and_a_device_is_not():
    before = leaks.take_snapshot()
    memory = os.memfd_create("arena")
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        assert leaks.find_leaks(before) == [f"descriptor {memory} of /memfd:arena (deleted)"]
    finally:
        os.close(memory)
        os.close(null)


def test_a_shared_memory_entry_is_found_until_it_goes():
    path = leaks.SHM / f"tierkv-leak-test-{os.getpid()}"
    before = leaks.take_snapshot()
    path.touch()
    try:
        assert leaks.find_leaks(before) == [str(path)]
    finally:
        path.unlink()
    assert leaks.find_leaks(before) == []


def test_a_leak_that_stays_is_told_after_the_wait(tmp_path):
    before = leaks.take_snapshot()
    with (tmp_path / "open").open("wb") as file:
        assert leaks.wait_for_none(before, timeout_s=0.01) == [f"descriptor {file.fileno()} of {tmp_path / 'open'}"]
