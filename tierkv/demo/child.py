"""The engine process of the demo, seen from its parent: start, ask, kill. `tierkv.demo.engine` is its other side.

Loads neither torch nor transformers. Whoever starts a child ends it: `EngineProcess` is a context manager, and leaving it kills.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tierkv.clock import SystemClock
from tierkv.errors import UnavailableError

READY_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 900.0
"""A model of several billions of parameters needs minutes for the document on two cores."""
_LOG_TAIL_BYTES = 4096
_LINE_BYTES_LIMIT = 16 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. ttft_ms — from the call of `generate` to its first token, of which restore_ms went into the restore; tier — the
    slowest that blocks came from.
    """

    ttft_ms: float
    restore_ms: float
    prompt_tokens: int
    restored_tokens: int
    tier: str | None
    saved_blocks: int
    token_ids: list[int]
    text: str


class EngineProcess:
    """One engine process. The constructor starts nothing."""

    def __init__(self, command: list[str], *, log: Path) -> None:
        """Command — an argument list (`engine_command`); log — file its standard error is appended to."""
        self._command = command
        self._log = log
        self._clock = SystemClock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        """Spawns the process and returns at once; see `wait_ready`."""
        self.kill()
        self._pending = b""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
            )

    def wait_ready(self, *, timeout_s: float = READY_TIMEOUT_S) -> float:
        """Blocks until the model is loaded and warm; returns the seconds it took to load. Raises UnavailableError."""
        while True:
            message = self._receive(timeout_s)
            if message.get("event") == "ready":
                if message.get("refusal"):
                    raise UnavailableError("this model cannot be cached", reason=message["refusal"])
                return float(message["load_s"])

    def ask(self, document: str, question: str, new_tokens: int, *, timeout_s: float = ANSWER_TIMEOUT_S) -> Answer:
        """Sends one request and waits for its answer. Raises UnavailableError when the process ends or is too slow."""
        request = {"document": document, "question": question, "new_tokens": new_tokens}
        return Answer(**self.call(request, timeout_s=timeout_s))

    def call(self, request: dict[str, Any], *, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """Sends one object and waits for the one that answers it. Raises as `ask` does."""
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError as error:
            raise self._ended() from error
        return self._receive(timeout_s)

    def kill(self) -> None:
        """SIGKILL, and waits until the process is gone; nothing happens when none runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    _close(stream)

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        process = self._running()
        assert process.stdout is not None
        deadline_s = self._clock.monotonic_s() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline_s - self._clock.monotonic_s())):
                    raise UnavailableError("the engine does not answer in time", timeout_s=timeout_s, log=self._log_tail())
                received = os.read(process.stdout.fileno(), 1 << 16)
                self._pending += received
                if not received or len(self._pending) > _LINE_BYTES_LIMIT:
                    raise self._ended()
        line, self._pending = self._pending.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise UnavailableError("the engine was not started")
        return self._process

    def _ended(self) -> UnavailableError:
        return UnavailableError("the engine ended by itself", log=self._log_tail())

    def _log_tail(self) -> str:
        if not self._log.exists():
            return ""
        return self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()[-200:]


def engine_command(model: Path, run_folder: Path, block_tokens: int) -> list[str]:
    """The argument list of an engine for `model` that talks to the daemon of `run_folder`."""
    return [sys.executable, "-m", "tierkv.demo.engine", str(model), str(run_folder), str(block_tokens)]


def _environment() -> dict[str, str]:
    return {
        # Threads that spin while they wait make a step 10 times slower as soon as anything else wants a core.
        "OMP_WAIT_POLICY": "PASSIVE",
        **os.environ,
        # The child finds the packages of this process, installed or not; it never asks a model hub.
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "HF_HUB_OFFLINE": "1",
    }


def _close(stream: Any) -> None:
    try:
        stream.close()
    except BrokenPipeError:
        # What was still buffered for a process that is gone.
        return
