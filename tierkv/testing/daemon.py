"""A real daemon as a child process: start, wait until it serves, stop, kill. For tests, the demo and the benchmarks.

The daemon's log goes to a file, so that nobody need drain a pipe; readiness is its log line with `"event": "ready"`. Whoever starts a
daemon ends it: `DaemonProcess` is a context manager, and leaving it kills what still runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tierkv.config import is_setting
from tierkv.errors import UnavailableError
from tierkv.testing.deadline import wait_until

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
LOG_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """The flags of `tierkv serve` that a child is started with; None leaves the daemon's default.

    data, run_dir — folders, made when missing; the path of run_dir must leave room for a socket's name (107 bytes). host_memory,
    disk — sizes as text, e.g. "64MiB". http — HOST:PORT or "off". extra — further flags as they are.
    """

    data: Path
    run_dir: Path
    host_memory: str = "64MiB"
    disk: str = "256MiB"
    http: str = "off"
    durability: str | None = None
    arena_folder: Path | None = None
    extra: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """The argument list of the process."""
        flags: dict[str, object] = {
            "--data": self.data,
            "--run-dir": self.run_dir,
            "--host-memory": self.host_memory,
            "--disk": self.disk,
            "--http": self.http,
            "--durability": self.durability,
            "--arena-folder": self.arena_folder,
        }
        given = [part for flag, value in flags.items() if value is not None for part in (flag, str(value))]
        return [sys.executable, "-m", "tierkv.cli.main", "serve", *given, *self.extra]


class DaemonProcess:
    """One daemon process. The constructor starts nothing; every method may be called from one thread only."""

    def __init__(self, options: DaemonOptions, *, log: Path, environment: Mapping[str, str] | None = None) -> None:
        """Options as flags; log — file that takes the daemon's output; environment — additions to this process's."""
        self.options = options
        self.log = log
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._started_at_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Process id; raises UnavailableError before `start` and after the end."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Spawns the process and returns at once; see `wait_ready`. The log of an earlier start stays before the new one's."""
        if self.is_running:
            raise UnavailableError("this daemon runs already", pid=self.pid)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._started_at_s = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.options.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # The child finds the packages of this process, installed or not. Settings of the user's own daemon are not its.
                env={**_without_settings(os.environ), "PYTHONPATH": _python_path(), **self._environment},
            )

    def wait_ready(self, *, timeout_s: float = READY_TIMEOUT_S) -> float:
        """Blocks until the daemon serves; returns the seconds since `start`.

        Raises UnavailableError with the end of the log when the process ends first or `timeout_s` passes.
        """
        process = self._running()
        try:
            wait_until(lambda: self._said_ready() or process.poll() is not None, timeout_s=timeout_s, what="the daemon to be ready")
        except TimeoutError as error:
            raise UnavailableError("the daemon is not ready in time", timeout_s=timeout_s, log=self.log_tail()) from error
        ready_s = time.monotonic() - self._started_at_s
        if not self._said_ready():
            raise UnavailableError("the daemon ended before it was ready", exit_code=process.returncode, log=self.log_tail())
        return ready_s

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Asks for a graceful stop (SIGTERM) and waits for it; the exit code. Raises UnavailableError when it does not come."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            return self._reap(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise UnavailableError("the daemon does not stop", pid=process.pid, log=self.log_tail()) from error

    def kill(self) -> None:
        """SIGKILL, and waits until the process is gone; nothing happens when none runs."""
        if self.is_running:
            self._running().kill()
        if self._process is not None:
            self._reap(STOP_TIMEOUT_S)

    def log_events(self) -> list[dict[str, object]]:
        """The JSON lines of the log since the last `start`; a line still being written and lines that are no JSON are left out."""
        events: list[dict[str, object]] = []
        for line in self._log_bytes().splitlines(keepends=True):
            if line.endswith(b"\n") and line.startswith(b"{"):
                try:
                    events.append(json.loads(line))
                except ValueError:
                    continue
        return events

    def log_tail(self) -> str:
        """The end of the log, for error messages."""
        return self._log_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()

    def _said_ready(self) -> bool:
        return any(event.get("event") == "ready" for event in self.log_events())

    def _log_bytes(self) -> bytes:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise UnavailableError("the daemon was not started", data=self.options.data)
        return self._process

    def _reap(self, timeout_s: float) -> int:
        process = self._running()
        exit_code = process.wait(timeout_s)
        self._process = None
        return exit_code


def start_daemon(options: DaemonOptions, *, log: Path, environment: Mapping[str, str] | None = None) -> DaemonProcess:
    """Starts a daemon and waits until it serves. The caller ends it (`with`, `stop` or `kill`)."""
    daemon = DaemonProcess(options, log=log, environment=environment)
    daemon.start()
    try:
        daemon.wait_ready()
    except BaseException:
        daemon.kill()
        raise
    return daemon


def _without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if not is_setting(name)}


def _python_path() -> str:
    return os.pathsep.join(path for path in (str(Path(entry or ".").resolve()) for entry in sys.path) if Path(path).is_dir())
