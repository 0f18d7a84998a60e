"""Settings of a daemon, read from a TOML file, the environment and flags, each overriding the one before.

The options are one table (`OPTIONS`): name, how its text is read, what it is for. A file has the names as they are (`host_memory =
"4GiB"`), the environment in capitals (`TIERKV_HOST_MEMORY=4GiB`), flags with dashes (`--host-memory 4GiB`). What is not in the
table is refused with the nearest name.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tierkv.errors import InvalidRequestError
from tierkv.machine import default_arena_folder, default_disk_bytes, default_host_bytes, total_memory_bytes
from tierkv.model.outcomes import Durability
from tierkv.settings import DeviceSettings, DiskSettings, HostSettings, LimitSettings, PolicyName, StoreSettings

ENVIRONMENT_PREFIX = "TIERKV_"
NOT_SETTINGS = frozenset({"TIERKV_TOKEN", "TIERKV_TRACES"})
"""Variables of the same prefix that belong to clients and tests."""
DEFAULT_HTTP = "127.0.0.1:9400"

LONGEST_DISK_INTERVAL_S = 0.5
"""Half of what the durability promise `interval` allows; the other half is for the write itself."""

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_DEVICE = re.compile(r"cpu|cuda:(0|[1-9][0-9]*)")  # one spelling each, so that no device gets two pools


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address to listen on."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """What a daemon is started with. run_folder None: the user's runtime folder; http, listen None: off."""

    store: StoreSettings
    run_folder: Path | None
    http: Address | None
    listen: Address | None
    tls_cert: Path | None
    tls_key: Path | None
    token_file: Path | None
    log_level: LogLevel

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequestError("tls_cert and tls_key go together", tls_cert=self.tls_cert, tls_key=self.tls_key)
        if self.listen is not None and not self.listen.is_loopback and (self.tls_cert is None or self.token_file is None):
            raise InvalidRequestError(
                "an address that others can reach needs tls_cert, tls_key and token_file; or listen on 127.0.0.1",
                listen=self.listen,
            )
        if self.http is not None and not self.http.is_loopback:
            raise InvalidRequestError("http has no authentication and stays on loopback; put a proxy before it", http=self.http)


def parse_size(text: int | str) -> int:
    """Bytes of "4GiB", "500MB", "1.5 GiB" or a plain number. Raises InvalidRequestError that shows the form."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    found = _SIZE.fullmatch(str(text))
    unit = _UNITS.get(found.group(2).upper()) if found else None
    if found is None or unit is None:
        raise InvalidRequestError("a size looks like 4GiB, 500MB or 1048576", size=text)
    return int(float(found.group(1)) * unit)


def parse_devices(texts: str | Sequence[str]) -> tuple[DeviceSettings, ...]:
    """Page pools of "cpu:2GiB", of several with commas between them, or of a list of such.

    Raises InvalidRequestError that shows the form.
    """
    parts = texts.split(",") if isinstance(texts, str) else [part for text in texts for part in str(text).split(",")]
    return tuple(_parse_device(part.strip()) for part in parts)


def _parse_device(text: str) -> DeviceSettings:
    name, colon, size = text.rpartition(":")
    if _DEVICE.fullmatch(text):
        raise InvalidRequestError("a device needs the size of its page pool, as in cpu:2GiB or cuda:0:20GiB", device=text)
    if not colon or not _DEVICE.fullmatch(name):
        raise InvalidRequestError("a device looks like cpu:2GiB or cuda:0:20GiB", device=text)
    return DeviceSettings(name, parse_size(size))


def parse_address(text: str) -> Address | None:
    """host:port, or None for "off"."""
    if text == "off":
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535 or not host:
        raise InvalidRequestError("an address looks like 127.0.0.1:9400, or is 'off'", address=text)
    return Address(host.strip("[]"), int(port))


def _parse_seconds(text: object) -> float:
    try:
        seconds = float(str(text).removesuffix("s"))
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidRequestError("a duration looks like 0.25 or 0.25s and is above zero", duration=text)
    return seconds


def _parse_interval(text: object) -> float:
    seconds = _parse_seconds(text)
    if seconds > LONGEST_DISK_INTERVAL_S:
        raise InvalidRequestError("the promise of `interval` is one second; choose at most 0.5s", duration=text)
    return seconds


def _parse_count(text: object) -> int:
    if not str(text).isascii() or not str(text).isdigit():
        raise InvalidRequestError("a count is an integer, not below zero", count=text)
    return int(str(text))


def _parse_flag(text: object) -> bool:
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    found = words.get(str(text).lower())
    if found is None:
        raise InvalidRequestError("a switch is true or false", value=text)
    return found


def _one_of(kind: type[StrEnum]) -> Callable[[object], StrEnum]:
    def read(text: object) -> StrEnum:
        try:
            return kind(str(text))
        except ValueError:
            raise InvalidRequestError("unknown value", value=text, known=", ".join(kind)) from None

    return read


OPTIONS: dict[str, Callable[[Any], object]] = {
    "data": lambda text: Path(text).expanduser(),
    "run_dir": lambda text: Path(text).expanduser(),
    "arena_folder": lambda text: Path(text).expanduser(),
    "device": parse_devices,
    "host_memory": parse_size,
    "disk": parse_size,
    "disk_codec": str,
    "disk_interval": _parse_interval,
    "disk_write_budget": parse_size,
    "segment_size": parse_size,
    "direct_io": _parse_flag,
    "prefault": _parse_flag,
    "keep_arena": _parse_flag,
    "durability": _one_of(Durability),
    "policy": _one_of(PolicyName),
    "lease_ttl": _parse_seconds,
    "reservation_ttl": _parse_seconds,
    "verify_every_hit": _parse_flag,
    "trail_events": _parse_count,
    "trail_keys": _parse_count,
    "http": parse_address,
    "listen": parse_address,
    "tls_cert": lambda text: Path(text).expanduser(),
    "tls_key": lambda text: Path(text).expanduser(),
    "token_file": lambda text: Path(text).expanduser(),
    "log_level": _one_of(LogLevel),
}
SEVERAL = frozenset({"device"})
"""Options that may be given more than once, as a list in a file, or with commas."""


def default_data_folder(environment: Mapping[str, str] | None = None) -> Path:
    """$XDG_DATA_HOME/tierkv, or ~/.local/share/tierkv."""
    base = (os.environ if environment is None else environment).get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "tierkv"


def load(
    flags: Mapping[str, object], *, config_file: Path | None = None, environment: Mapping[str, str] | None = None
) -> DaemonSettings:
    """Settings from all sources. flags — option name → text, None where a flag was not given.

    Raises InvalidRequestError for an unknown name (with the nearest), a value that cannot be read (with its source), or settings
    that contradict each other.
    """
    env = os.environ if environment is None else environment
    values: dict[str, object] = {}
    if config_file is not None:
        values.update(_read("file", _from_file(config_file)))
    values.update(_read("environment", _from_environment(env)))
    values.update(_read("flag", {name: value for name, value in flags.items() if value is not None}))
    return _build(values, env)


def _from_file(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidRequestError("the configuration file cannot be read", path=path, error=error.strerror) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError("the configuration file is not TOML", path=path, error=error) from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    own = {name: text for name, text in environment.items() if is_setting(name) and text}
    return {name.removeprefix(ENVIRONMENT_PREFIX).lower(): text for name, text in own.items()}


def is_setting(variable: str) -> bool:
    """Whether an environment variable of this name is read as a setting of the daemon."""
    return variable.startswith(ENVIRONMENT_PREFIX) and variable not in NOT_SETTINGS


def _read(source: str, texts: Mapping[str, object]) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, text in texts.items():
        read = OPTIONS.get(name)
        if read is None:
            nearest = difflib.get_close_matches(name, OPTIONS, n=1)
            if nearest:
                raise InvalidRequestError(f"unknown setting in the {source}", name=name, nearest=nearest[0])
            raise InvalidRequestError(f"unknown setting in the {source}; known are {', '.join(OPTIONS)}", name=name)
        try:
            values[name] = read(_as_given(name, text))
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{error.message} (setting '{name}' from the {source})", **error.context) from error
    return values


def _check_fits(devices: tuple[DeviceSettings, ...]) -> None:
    """Raises InvalidRequestError for pools that the machine could not hold even if it were empty: taking their memory would end others.

    Not compared with what is free: engines may still map the pool of an earlier daemon, until they open that of this one.
    """
    total_bytes = total_memory_bytes()
    for device in devices:
        if device.device == "cpu" and device.memory_bytes > total_bytes:
            raise InvalidRequestError(
                "the page pool is larger than the memory of this machine",
                device=device.device,
                memory_bytes=device.memory_bytes,
                machine_bytes=total_bytes,
            )


def _as_given(name: str, text: object) -> object:
    """Numbers and lists of several (`SEVERAL`) as they are, everything else as text."""
    is_number = isinstance(text, int) and not isinstance(text, bool)
    return text if is_number or (name in SEVERAL and isinstance(text, list | tuple)) else str(text)


def _build(values: dict[str, object], environment: Mapping[str, str]) -> DaemonSettings:
    def pick(*names: str, **renamed: str) -> dict[str, object]:
        """Those of the options that were given, under the names of the settings."""
        wanted = {name: name for name in names} | {option: name for name, option in renamed.items()}
        return {name: values[option] for option, name in wanted.items() if option in values}

    data = values.get("data") or default_data_folder(environment)
    assert isinstance(data, Path)
    arena = values.get("arena_folder") or default_arena_folder(data)
    assert isinstance(arena, Path)
    host = {"memory_bytes": values["host_memory"] if "host_memory" in values else default_host_bytes(arena)}
    disk = {"capacity_bytes": values["disk"] if "disk" in values else default_disk_bytes(data)}
    host |= pick("prefault", folder="arena_folder", keep_on_stop="keep_arena")
    disk |= pick("direct_io", codec="disk_codec", interval_s="disk_interval", segment_bytes="segment_size")
    disk |= pick(write_budget_bytes_per_day="disk_write_budget")
    _check_fits(values.get("device", ()))  # type: ignore[arg-type]  # read by its option
    limits = pick("trail_events", "trail_keys", lease_ttl_s="lease_ttl", reservation_ttl_s="reservation_ttl")
    store = StoreSettings(
        data_folder=data,
        host=HostSettings(**host),  # type: ignore[arg-type]  # each value was read by its option
        disk=DiskSettings(**disk),  # type: ignore[arg-type]
        limits=LimitSettings(**limits),  # type: ignore[arg-type]
        **pick("durability", "policy", "verify_every_hit", devices="device"),  # type: ignore[arg-type]
    )
    defaults: dict[str, object] = {
        "run_folder": None,
        "http": parse_address(DEFAULT_HTTP),
        "listen": None,
        "tls_cert": None,
        "tls_key": None,
        "token_file": None,
        "log_level": LogLevel.INFO,
    }
    daemon = defaults | pick("http", "listen", "tls_cert", "tls_key", "token_file", "log_level", run_folder="run_dir")
    return DaemonSettings(store=store, **daemon)  # type: ignore[arg-type]
