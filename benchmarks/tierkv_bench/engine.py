"""The reference engine: is it right, is it quick beside transformers, and what does the cache save it, also when it was killed.

Starts daemons in a scratch folder and the engine in a process of its own; what is measured happens in that process (`engine_cases`),
and this one kills and starts. Expected on paper: a token of SmolLM2-135M in float32 reads 540 MB of weights, so decoding is bound by
memory and eight streams share what one reads; prefill is bound by arithmetic, which both engines do with the same library; a hit on
the device costs one call (about 1 ms) before the suffix; a resumed sequence copies 46 KB a token at some GB/s instead of computing
it at 1 to 2 ms.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tierkv.demo.child import EngineProcess
from tierkv.errors import InternalError, InvalidRequestError
from tierkv.settings import MIB
from tierkv.testing.daemon import DaemonOptions, DaemonProcess
from tierkv_bench.engine_report import EngineResult, missed
from tierkv_bench.stores import ARENA_NAME, SHM, wait_for_arena

LENGTHS = (1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 64, 100, 127, 200, 333, 512, 777, 1024, 1500, 2000)
"""Of the prompts that transformers answers too: around the edges of pages, and up to what a document has."""
QUICK_LENGTHS = LENGTHS[:15]
NEW_NUMBERS = 1 << 20
"""Where the numbers of new prompts begin; a process that is started again begins as far behind, so that none of its prompts is known."""
STREAMS = 8
CURVE_LENGTHS = (64, 128, 256, 512, 1024, 2048)
"""Of the picture."""
SPARE_PAGES = 96
"""Of the large pool: nothing that is measured there runs short."""
SLACK_PAGES = 16
"""Of the small one: what an engine keeps in stock, twice."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What to measure. prefix_len, suffix_lens — tokens of the cached prefix and of what follows it, the first for the
    bars; rounds — of each ratio;
    load_rounds — of each load; parity_lens — of the prompts that transformers answers too; has_slow_tiers — also find prefixes in host
    memory and on disk; curve_lens — of prompts for the picture, each alone.
    """

    model: Path
    batches: tuple[int, ...] = (1, 4, 8)
    prompt_lens: tuple[int, ...] = (128, 1024)
    new_tokens: int = 32
    rounds: int = 5
    load_rounds: int = 2
    prefix_len: int = 1024
    suffix_lens: tuple[int, ...] = (8, 64)
    block_tokens: int = 16
    dtype: str = "float32"
    threads: int = 2
    parity_lens: tuple[int, ...] = LENGTHS
    has_slow_tiers: bool = True
    curve_lens: tuple[int, ...] = ()
    profile: Path | None = None
    quick: bool = field(default=False)

    def quickly(self) -> EngineOptions:
        """Two rounds, one of each load, short parity, no slow tiers: to see that it runs, not to quote."""
        return replace(self, rounds=2, load_rounds=1, parity_lens=QUICK_LENGTHS, has_slow_tiers=False, quick=True)

    @property
    def prefixed_len(self) -> int:
        """Tokens of the longest prompt that begins with a cached prefix."""
        return self.prefix_len + max(self.suffix_lens)

    def pages(self, num_tokens: int) -> int:
        """Pages of a prompt of so many tokens and its answer."""
        return -(-(num_tokens + self.new_tokens) // self.block_tokens)


def measure(options: EngineOptions, say: Callable[[str], None]) -> EngineResult:
    """Runs all of it; blocks for some minutes. Raises InvalidRequestError for lengths that the model's context does not hold."""
    if not options.batches or not options.prompt_lens or min(*options.batches, *options.prompt_lens, *options.suffix_lens) < 1:
        raise InvalidRequestError(
            "a load has at least one request of one token", batch=options.batches, prompt_len=options.prompt_lens
        )
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidRequestError("the engine needs an extra; pip install 'tierkv[transformers]'", missing=", ".join(missing))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tierkv-bench-")))
        shm = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tierkv-bench-", dir=SHM)))
        return _Story(options, say, folder, shm, stack).tell()


class _Story:
    """The order of things, and the processes in it."""

    def __init__(self, options: EngineOptions, say: Callable[[str], None], folder: Path, shm: Path, stack: ExitStack) -> None:
        self._options = options
        self._say = say
        self._folder = folder
        self._shm = shm
        self._stack = stack
        self._starts = 0
        self._engine: EngineProcess
        self._page_bytes = 0

    def tell(self) -> EngineResult:
        options = self._options
        self._say("loading the model, for the engine and for transformers")
        self._start_engine(has_reference=True)
        about = self._call("describe")
        self._page_bytes = about["page_bytes"]
        self._check_context(about["context"])
        large = self._start_daemon("large", self._large_pages())
        self._open(large)
        parity = self._parity()
        compared, runs = self._speed()
        self._say(f"{STREAMS} streams against one after another")
        streams = self._call(
            "streams", batch=STREAMS, prompt_len=128, new_tokens=2 * options.new_tokens, rounds=options.load_rounds
        )
        devices, restart = self._hits(large)
        device = devices[0]
        runs += [{"case": "prefix", **found["run"]} for found in devices] + [{"case": "prefix_engine_restart", **restart["run"]}]
        ratios = {
            "prefill": compared["prefill"],
            "decode": compared["decode"],
            "streams_8": streams["streams"],
            "device_hit_ttft": device["ratio"],
            "device_hit_vs_held": device["held_ratio"],
            "engine_restart_ttft": restart["ratio"],
        }
        for suffix_len, found in zip(options.suffix_lens[1:], devices[1:], strict=True):
            ratios |= {f"device_hit_ttft_{suffix_len}": found["ratio"], f"device_hit_vs_held_{suffix_len}": found["held_ratio"]}
        if options.profile is not None:
            self._say("recording a profile")
            self._call("profile", path=str(options.profile.resolve()), prompt_len=options.prompt_lens[0], new_tokens=8)
        large.stop()
        small_runs, resumed = self._small_pool()
        ratios["resume_vs_recompute"] = resumed.pop("ratio")
        result = EngineResult(
            model=options.model.name,
            dtype=options.dtype,
            threads=options.threads,
            block_tokens=options.block_tokens,
            quick=options.quick,
            parity=parity,
            transformers=compared["transformers"],
            runs=[*runs, *small_runs],
            ratios={name: round(ratio, 4) for name, ratio in ratios.items()},
            single_stream=compared["run"],
            resume=resumed,
            peak_pages=max(run["peak_pages"] for run in runs),
            pages_copied_on_device_hits=sum(found["run"]["pages_copied"] for found in [*devices, restart]),
            passed=False,
        )
        return replace(result, passed=not missed(result))

    def _parity(self) -> dict[str, Any]:
        self._say(f"the same tokens as transformers? {len(self._options.parity_lens)} prompts")
        return self._call("parity", lengths=list(self._options.parity_lens), new_tokens=16)

    def _speed(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """One stream beside transformers, then every load."""
        options = self._options
        longest = max(options.prompt_lens)
        self._say(f"one stream of {longest} tokens beside transformers, {options.rounds} rounds")
        compared = self._call("compare", prompt_len=longest, new_tokens=options.new_tokens, rounds=options.rounds)
        runs = []
        for batch in options.batches:
            for prompt_len in options.prompt_lens:
                self._say(f"{batch} at once, prompts of {prompt_len} tokens")
                load = self._call(
                    "load", batch=batch, prompt_len=prompt_len, new_tokens=options.new_tokens, rounds=options.load_rounds
                )
                runs += [{"case": "load", **load["cold"]}, {"case": "load_again", **load["warm"]}]
        for prompt_len in options.curve_lens:
            self._say(f"one at a time, prompts of {prompt_len} tokens")
            load = self._call("load", batch=1, prompt_len=prompt_len, new_tokens=2, rounds=options.load_rounds)
            runs += [{"case": "curve", **load["cold"]}, {"case": "curve_again", **load["warm"]}]
        return compared, runs

    def _hits(self, daemon: DaemonProcess) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Prefixes on the device, by the engine that computed them (a result for each length of suffix) and by one started since."""
        options = self._options
        numbers = list(range(2 * options.rounds))
        before, after = numbers[: options.rounds], numbers[options.rounds :]
        self._say(f"prefixes of {options.prefix_len} tokens on the device")
        self._call("fill", numbers=numbers, prompt_len=options.prefix_len)
        lengths = [{"prefix_len": options.prefix_len, "suffix_len": suffix_len} for suffix_len in options.suffix_lens]
        devices = [self._call("prefix", numbers=before, **each) for each in lengths]
        self._say("killing the engine, and starting it again beside the same daemon")
        self._engine.kill()
        self._start_engine(has_reference=False)
        self._open(daemon)
        return devices, self._call("prefix", numbers=after, **lengths[0])

    def _small_pool(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """A pool that holds little more than one prompt: who is preempted sinks to the host tier, and what was asked before lies there."""
        options = self._options
        self._say("a small pool: preempting a sequence and resuming it")
        pages = options.pages(options.prefixed_len) + SLACK_PAGES
        daemon = self._start_daemon("small", pages)
        self._open(daemon)
        resumed = self._call("preempt", prompt_len=options.prefix_len, new_tokens=24, rounds=options.rounds)
        if resumed["pages_copied"] < options.rounds * options.prefix_len // options.block_tokens // 2:
            raise InternalError("the preempted sequence did not come back from the host tier", **resumed)
        if not options.has_slow_tiers or options.rounds < 3:
            return [], resumed
        numbers = list(range(options.rounds))
        lengths = {"prefix_len": options.prefix_len, "suffix_len": options.suffix_lens[0]}
        self._say("prefixes in host memory")
        self._call("fill", numbers=numbers, prompt_len=options.prefix_len)
        # Every prompt pushes an earlier one out; the last two are asked for first, and the others have left by then.
        host = self._call("prefix", numbers=numbers[:-2], **lengths)
        self._say("prefixes on disk: restarting the daemon without its memory")
        self._call("open", run_dir="")
        daemon.stop()
        shutil.rmtree(self._shm / "small", ignore_errors=True)
        self._run_daemon(daemon)
        self._open(daemon)
        disk = self._call("prefix", numbers=numbers[:-2], **lengths)
        return [{"case": "prefix", **host["run"]}, {"case": "prefix_daemon_restart", **disk["run"]}], resumed

    def _large_pages(self) -> int:
        """Room for every round of the largest load twice: its prompts are asked for again, and the policy keeps some of the loads before it."""
        options = self._options
        load = 2 * options.load_rounds * max(options.batches) * options.pages(max(options.prompt_lens))
        prefixes = 2 * options.rounds * options.pages(options.prefixed_len)
        curve = options.load_rounds * options.pages(max(options.curve_lens, default=0))
        return max(load, prefixes, curve, options.pages(max(options.parity_lens))) + SPARE_PAGES

    def _check_context(self, context: int) -> None:
        options = self._options
        longest = max(*options.prompt_lens, options.prefixed_len, *options.parity_lens, *options.curve_lens)
        if longest + options.new_tokens > context:
            raise InvalidRequestError("the model's context does not hold such prompts", tokens=longest, context=context)

    def _start_daemon(self, name: str, num_pages: int) -> DaemonProcess:
        pool_bytes = num_pages * self._page_bytes
        host_bytes = max(pool_bytes * 5 // 4, (2 * self._options.rounds + 2) * self._page_bytes * 80) + 64 * MIB
        options = DaemonOptions(
            data=self._folder / name / "data",
            run_dir=self._folder / name / "run",
            host_memory=str(host_bytes),
            disk=str(2 * host_bytes),
            arena_folder=self._shm / name,
            extra=("--device", f"cpu:{pool_bytes}"),
        )
        daemon = self._stack.enter_context(DaemonProcess(options, log=self._folder / f"{name}.log"))
        self._run_daemon(daemon)
        return daemon

    def _run_daemon(self, daemon: DaemonProcess) -> None:
        self._say("starting a daemon and waiting for its memory")
        daemon.start()
        daemon.wait_ready()
        assert daemon.options.arena_folder is not None
        wait_for_arena(daemon.options.arena_folder / ARENA_NAME)

    def _start_engine(self, *, has_reference: bool) -> None:
        options = self._options
        self._starts += 1
        command = engine_command(options, first=self._starts * NEW_NUMBERS, has_reference=has_reference)
        self._engine = self._stack.enter_context(EngineProcess(command, log=self._folder / "engine.log"))
        self._engine.start()
        self._engine.wait_ready()

    def _open(self, daemon: DaemonProcess) -> None:
        opened = self._call("open", run_dir=str(daemon.options.run_dir))
        if opened["is_private"]:
            raise InternalError("the engine did not take the daemon's pages", log=self._folder / "engine.log")

    def _call(self, case: str, **arguments: Any) -> dict[str, Any]:
        answer = self._engine.call({"case": case, **arguments})
        if "error" in answer:
            raise InternalError("a case of the benchmark failed", case=case, error=answer["error"])
        return answer


def engine_command(options: EngineOptions, *, first: int, has_reference: bool) -> list[str]:
    """The argument list of the engine's process."""
    return [
        sys.executable,
        "-m",
        "tierkv_bench.engine_child",
        str(options.model),
        options.dtype,
        str(options.threads),
        str(options.block_tokens),
        str(first),
        "reference" if has_reference else "-",
    ]
