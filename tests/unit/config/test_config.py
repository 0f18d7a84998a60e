"""Settings from file, environment and flags."""

import pytest

from tierkv.config import Address, LogLevel, load, parse_address, parse_size
from tierkv.errors import InvalidRequestError
from tierkv.model.outcomes import Durability
from tierkv.settings import GIB, MIB, DeviceSettings, PolicyName


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4GiB", 4 * GIB), ("500MB", 500_000_000), ("1.5 MiB", 3 * MIB // 2), ("1048576", MIB), (7, 7), ("0", 0), ("2kb", 2000)],
)
def test_sizes(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "4XB", "-1", "four", "1e9"])
def test_what_is_no_size_shows_the_form(text):
    with pytest.raises(InvalidRequestError, match="4GiB"):
        parse_size(text)


def test_addresses():
    assert parse_address("off") is None
    assert parse_address("127.0.0.1:80") == Address("127.0.0.1", 80)
    assert str(parse_address("[::1]:80")) == "[::1]:80"
    assert parse_address("localhost:0").is_loopback
    assert not parse_address("0.0.0.0:1").is_loopback
    for text in ("", "80", "host", ":80", "host:99999"):
        with pytest.raises(InvalidRequestError):
            parse_address(text)


def test_later_sources_override_earlier_ones(tmp_path):
    file = tmp_path / "tierkv.toml"
    file.write_text('host_memory = "64MiB"\ndisk = "1GiB"\ndurability = "strict"\ndirect_io = false\ndata = "/nowhere"\n')
    environment = {"TIERKV_HOST_MEMORY": "128MiB", "TIERKV_POLICY": "lru", "TIERKV_TOKEN": "not a setting", "HOME": "/"}
    settings = load({"host_memory": "256MiB", "http": None, "log_level": "debug"}, config_file=file, environment=environment)
    assert settings.store.host.memory_bytes == 256 * MIB
    assert settings.store.disk.capacity_bytes == GIB
    assert settings.store.disk.direct_io is False
    assert settings.store.durability is Durability.STRICT
    assert settings.store.policy is PolicyName.LRU
    assert settings.log_level is LogLevel.DEBUG
    assert settings.http == Address("127.0.0.1", 9400)
    assert settings.listen is None


def test_defaults_depend_on_the_machine_and_are_safe(tmp_path):
    settings = load({"data": str(tmp_path)}, environment={})
    assert 64 * MIB <= settings.store.host.memory_bytes <= 64 * GIB
    assert settings.store.disk.capacity_bytes >= 256 * MIB


def test_zero_turns_the_disk_off(tmp_path):
    assert load({"data": str(tmp_path), "disk": "0"}, environment={}).store.disk.capacity_bytes == 0


def test_the_disk_may_not_wait_longer_than_the_promise(tmp_path):
    assert load({}, environment={"TIERKV_DISK_INTERVAL": "0.5s"}).store.disk.interval_s == 0.5
    with pytest.raises(InvalidRequestError, match="one second"):
        load({}, environment={"TIERKV_DISK_INTERVAL": "2s"})


@pytest.mark.parametrize("source", ["file", "environment", "flag"])
def test_an_unknown_name_is_refused_with_the_nearest(tmp_path, source):
    file = tmp_path / "tierkv.toml"
    file.write_text('host_memmory = "1GiB"\n' if source == "file" else "")
    environment = {"TIERKV_HOST_MEMMORY": "1GiB"} if source == "environment" else {}
    flags = {"host_memmory": "1GiB"} if source == "flag" else {}
    with pytest.raises(InvalidRequestError, match="host_memory") as caught:
        load(flags, config_file=file, environment=environment)
    assert source in str(caught.value)


def test_a_bad_value_names_setting_and_source():
    with pytest.raises(InvalidRequestError, match="'durability' from the environment"):
        load({}, environment={"TIERKV_DURABILITY": "eternal"})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"listen": "0.0.0.0:9401"}, "token_file"),
        ({"http": "0.0.0.0:9400"}, "loopback"),
        ({"listen": "127.0.0.1:1", "tls_cert": "c"}, "go together"),
        ({"host_memory": "1"}, "at least 1MiB"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(flags, message):
    with pytest.raises(InvalidRequestError, match=message):
        load(flags, environment={})


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path):
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        load({}, config_file=tmp_path / "absent", environment={})
    broken = tmp_path / "broken.toml"
    for content in (b"= 3", b'data = "\xff"'):
        broken.write_bytes(content)
        with pytest.raises(InvalidRequestError, match="not TOML"):
            load({}, config_file=broken, environment={})


CPU, CUDA = DeviceSettings("cpu", 2 * GIB), DeviceSettings("cuda:0", 20 * GIB)


def test_a_pool_larger_than_the_machine_is_refused(monkeypatch):
    monkeypatch.setattr("tierkv.config.total_memory_bytes", lambda: 3 * GIB)
    assert load({"device": ["cpu:3GiB,cuda:0:20GiB"]}, environment={}).store.devices[0].memory_bytes == 3 * GIB
    with pytest.raises(InvalidRequestError, match="larger than the memory"):
        load({"device": ["cpu:3073MiB"]}, environment={})


def test_devices_come_from_flags_lists_and_text(tmp_path, monkeypatch):
    monkeypatch.setattr("tierkv.config.total_memory_bytes", lambda: 2 * GIB)
    file = tmp_path / "tierkv.toml"
    file.write_text('device = ["cpu:2GiB", "cuda:0:20GiB"]')
    assert load({}, config_file=file, environment={}).store.devices == (CPU, CUDA)
    assert load({}, environment={"TIERKV_DEVICE": "cpu:2GiB, cuda:0:20GiB"}).store.devices == (CPU, CUDA)
    assert load({"device": ["cpu:2GiB"]}, config_file=file, environment={}).store.devices == (CPU,)
    file.write_text('device = "cpu:2GiB"')
    assert load({}, config_file=file, environment={}).store.devices == (CPU,)
    assert load({"device": None}, environment={}).store.devices == ()


@pytest.mark.parametrize(
    "text", ["", "gpu:1GiB", "cuda:1GiB", "cuda:0x:1GiB", "cuda:00:1GiB", "cuda:٣:1GiB", "2GiB", "cpu:0:1GiB", ":1GiB", "cpu:1GiB,"]
)
def test_what_is_no_device_shows_the_form(text):
    with pytest.raises(InvalidRequestError, match=r"cuda:0:20GiB.*'device' from the flag"):
        load({"device": [text]}, environment={})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("cpu", "needs the size"), ("cuda:3", "needs the size"), ("cpu:lots", "4GiB"), ("cpu:1MiB,cpu:2MiB", "name it once")],
)
def test_a_device_without_a_size_or_named_twice_is_refused(text, sentence):
    with pytest.raises(InvalidRequestError, match=sentence):
        load({}, environment={"TIERKV_DEVICE": text})
