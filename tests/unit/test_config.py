"""Settings out of a file, the environment and flags: what is read, what is refused, and in whose words."""

import pytest

from tierkv.config import OPTIONS, load
from tierkv.errors import InvalidRequestError

SIZES = {"host_memory": "16MiB", "disk": "16MiB"}


def loaded(tmp_path, **flags):
    return load({"data": str(tmp_path / "data"), **SIZES, **flags}, environment={})


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("host_memory", "0", "host memory must be at least 1MiB"),
        ("host_memory", "1023KiB", "host memory must be at least 1MiB"),
        ("disk", "1000", "disk capacity must be at least 4KiB; 0 turns the tier off"),
        ("disk_write_budget", -1, "a write budget cannot be negative; 0 sets no limit"),
        ("disk_interval", "-1", "a duration .* is above zero .*'disk_interval' from the flag"),
        ("disk_interval", "nan", "a duration"),
        ("lease_ttl", "0", "a duration"),
        ("reservation_ttl", "inf", "a duration"),
        ("lease_ttl", "soon", "a duration"),
    ],
)
def test_a_number_that_cannot_work_is_refused(tmp_path, name, text, told):
    with pytest.raises(InvalidRequestError, match=told):
        loaded(tmp_path, **{name: text})


def test_no_disk_is_a_size_too(tmp_path):
    assert loaded(tmp_path, disk="0").store.disk.capacity_bytes == 0


def test_an_empty_variable_is_an_unset_one(tmp_path):
    settings = load({"data": str(tmp_path), **SIZES}, environment={"TIERKV_RUN_DIR": "", "TIERKV_LEASE_TTL": "5s"})
    assert settings.run_folder is None
    assert settings.store.limits.lease_ttl_s == 5


def test_a_name_like_no_other_is_answered_with_all_of_them(tmp_path):
    with pytest.raises(InvalidRequestError) as refused:
        loaded(tmp_path, zzz="1")
    assert all(name in str(refused.value) for name in OPTIONS)


def test_a_slip_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(InvalidRequestError, match="nearest='host_memory'"):
        loaded(tmp_path, host_memry="1GiB")
