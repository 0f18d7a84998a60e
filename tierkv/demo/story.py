"""The story the demo tells: answer, answer again, kill the engine, kill everything, lose the memory as well; and compare.

Starts real processes in a private folder and ends all of them, however it is left. What it leaves to others: how to show it.

| run | what happened before it | where its blocks come from |
|---|---|---|
| cold | nothing | nowhere: everything is computed |
| same_process | the same question was answered | host |
| engine_restart | SIGKILL of the engine | host |
| after_sigkill | SIGKILL of daemon and engine | host: the arena survives its daemon |
| after_reboot | SIGKILL of both, and the arena was removed, as a reboot does | disk |
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tierkv.config import parse_size
from tierkv.demo.child import Answer, EngineProcess, engine_command
from tierkv.testing.daemon import DaemonOptions, DaemonProcess
from tierkv.testing.deadline import wait_until

SHARED_MEMORY = Path("/dev/shm")
PREFAULT_TIMEOUT_S = 120.0
QUESTION = "According to the handbook, what is the name of the boat and when does she come?"


@dataclass(frozen=True, slots=True)
class StoryOptions:
    """model — local folder; sizes as text, e.g. "512MiB"; keep — leave the private folder behind for inspection."""

    model: Path
    new_tokens: int
    block_tokens: int
    host_memory: str
    disk: str
    keep: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One answer. restore_ms — part of ttft_ms that went into the restore; identical — token for token that of the cold run; faster — time to first token of the cold run over this one's."""

    name: str
    ttft_ms: float
    restore_ms: float
    restored_tokens: int
    tier: str | None
    identical: bool
    faster: float


@dataclass(frozen=True, slots=True)
class Story:
    """What the demo prints. passed — all runs are identical and every run after the cold one restored something."""

    model: str
    prompt_tokens: int
    new_tokens: int
    block_tokens: int
    question: str
    answer: str
    runs: tuple[Run, ...]
    passed: bool
    folder: str | None


class Progress(Protocol):
    """Told what takes long."""

    def step(self, text: str) -> None:
        """A step began; the one before it is done."""
        ...


def document() -> str:
    """The text the demo asks about: about 2,000 tokens."""
    return (Path(__file__).parent / "document.txt").read_text(encoding="utf-8")


def tell(options: StoryOptions, progress: Progress) -> Story:
    """Runs the whole story: a minute on two cores. Raises UnavailableError when a process does not come up or ends by itself."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="tierkv-demo-"))
        arena_root = SHARED_MEMORY if SHARED_MEMORY.is_dir() else folder
        arena = Path(tempfile.mkdtemp(prefix="tierkv-demo-", dir=arena_root)) / "arena"
        stack.callback(shutil.rmtree, arena.parent, ignore_errors=True)
        if not options.keep:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        daemon = stack.enter_context(DaemonProcess(_daemon_options(options, folder, arena), log=folder / "daemon.log"))
        command = engine_command(options.model, folder / "run", options.block_tokens)
        engine = stack.enter_context(EngineProcess(command, log=folder / "engine.log"))
        return _Teller(options, progress, daemon, engine, arena, folder).tell()


class _Teller:
    def __init__(
        self,
        options: StoryOptions,
        progress: Progress,
        daemon: DaemonProcess,
        engine: EngineProcess,
        arena: Path,
        folder: Path,
    ) -> None:
        self._options = options
        self._progress = progress
        self._daemon = daemon
        self._engine = engine
        self._arena = arena
        self._folder = folder

    def tell(self) -> Story:
        self._start_daemon("starting the daemon")
        self._start_engine()
        self._progress.step("cold: prefilling the document")
        cold = self._ask()
        self._progress.step("same process: asking again")
        answers = [("cold", cold), ("same_process", self._ask())]
        for name, upset in (
            ("engine_restart", self._kill_engine),
            ("after_sigkill", self._kill_everything),
            ("after_reboot", self._lose_memory),
        ):
            upset()
            self._start_engine()
            self._progress.step(f"{name.replace('_', ' ')}: asking again")
            answers.append((name, self._ask()))
        runs = tuple(
            Run(
                name=name,
                ttft_ms=answer.ttft_ms,
                restore_ms=answer.restore_ms,
                restored_tokens=answer.restored_tokens,
                tier=answer.tier,
                identical=answer.token_ids == cold.token_ids,
                faster=round(cold.ttft_ms / answer.ttft_ms, 1),
            )
            for name, answer in answers
        )
        return Story(
            model=self._options.model.name,
            prompt_tokens=cold.prompt_tokens,
            new_tokens=len(cold.token_ids),
            block_tokens=self._options.block_tokens,
            question=QUESTION,
            answer=cold.text,
            runs=runs,
            passed=all(run.identical for run in runs) and all(run.restored_tokens > 0 for run in runs[1:]),
            folder=str(self._folder) if self._options.keep else None,
        )

    def _ask(self) -> Answer:
        return self._engine.ask(document(), QUESTION, self._options.new_tokens)

    def _start_daemon(self, text: str) -> None:
        self._progress.step(text)
        self._daemon.start()
        self._daemon.wait_ready()

    def _start_engine(self) -> None:
        # The model loads while the daemon touches its memory; both are over before anything is timed.
        self._engine.start()
        self._progress.step(f"touching the daemon's memory ({self._options.host_memory})")
        self._wait_for_memory()
        self._progress.step("loading the model")
        self._engine.wait_ready()

    def _wait_for_memory(self) -> None:
        """Waits until every page of the arena has memory behind it: tmpfs counts the pages that it gave to a file."""
        size_bytes = parse_size(self._options.host_memory)
        # A system that counts otherwise makes the first answers slower, not wrong.
        with contextlib.suppress(TimeoutError):
            wait_until(
                lambda: not self._arena.is_dir() or _held_bytes(self._arena) >= size_bytes,
                timeout_s=PREFAULT_TIMEOUT_S,
                what="the arena to be touched",
            )

    def _kill_engine(self) -> None:
        self._progress.step("killing the engine")
        self._engine.kill()

    def _kill_everything(self) -> None:
        self._kill_engine()
        self._progress.step("killing the daemon")
        self._daemon.kill()
        self._start_daemon("starting the daemon over the memory it left")

    def _lose_memory(self) -> None:
        self._kill_engine()
        self._progress.step("killing the daemon and removing its memory")
        self._daemon.kill()
        shutil.rmtree(self._arena, ignore_errors=True)
        self._start_daemon("starting the daemon over its disk alone")


def _held_bytes(folder: Path) -> int:
    # Files come and go while the daemon starts.
    with contextlib.suppress(FileNotFoundError):
        return sum(file.stat().st_blocks * 512 for file in folder.iterdir())
    return 0


def _daemon_options(options: StoryOptions, folder: Path, arena: Path) -> DaemonOptions:
    return DaemonOptions(
        data=folder / "data",
        run_dir=folder / "run",
        host_memory=options.host_memory,
        disk=options.disk,
        arena_folder=arena,
    )
