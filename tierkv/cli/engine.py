"""`tierkv engine serve|run`: the reference engine behind the OpenAI API, or once, in the terminal."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierkv.cli.output import print_json, progress_console
from tierkv.config import Address, LogLevel, parse_size
from tierkv.errors import InternalError, InvalidRequestError

if TYPE_CHECKING:
    from tierkv.engine.engine import Engine
    from tierkv.engine.sampling import SamplingParams
    from tierkv.serving.server import EngineServer

EXTRAS = ("torch", "transformers")
INSTALL_COMMAND = "pip install 'tierkv[transformers]'"
DEFAULT_DAEMON = "default"

DaemonOption = Annotated[
    str | None,
    typer.Option(
        help="Run folder of a daemon with pages (`tierkv serve --device`); `default`: the user's. Without it the engine has pages of its own."
    ),
]
DeviceOption = Annotated[str, typer.Option(help="Where the model computes: cpu, or cuda:0.")]
DtypeOption = Annotated[str, typer.Option(help="Of weights, K and V: float32, bfloat16 or float16.")]
BlockTokensOption = Annotated[int, typer.Option(min=1, help="Tokens of one block.")]
PrivateMemoryOption = Annotated[str, typer.Option(help="Pages of the engine's own, without a daemon or while it is away.")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="Threads of numerics. Default: torch's own.")]


def register(app: typer.Typer) -> None:
    """Adds the group `engine` to `app`."""
    group = typer.Typer(help="Run models with the reference engine, whose attention reads the store's pages.", no_args_is_help=True)
    group.command("serve")(serve)
    group.command("run")(run)
    app.add_typer(group, name="engine")


def serve(
    model: Annotated[
        Path | None, typer.Argument(help="Folder with safetensors, or a file *.gguf; default: the bundled one.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; one that others can reach needs an API key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 takes a free one.")] = 8000,
    name: Annotated[str | None, typer.Option(help="What clients call the model. Default: the folder's name.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="TIERKV_API_KEY", help="What clients must show; better given by the variable.")
    ] = None,
    daemon: DaemonOption = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    block_tokens: BlockTokensOption = 16,
    private_memory: PrivateMemoryOption = "512MiB",
    max_sequences: Annotated[int, typer.Option(min=1, help="Sequences that run at once.")] = 64,
    max_batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens computed in one step.")] = 512,
    max_waiting: Annotated[int, typer.Option(min=1, help="Requests that may queue; more are told to come again.")] = 1024,
    threads: ThreadsOption = None,
    log_level: Annotated[LogLevel, typer.Option(help="debug, info, warning or error.")] = LogLevel.INFO,
) -> None:
    """Serve a model over the OpenAI API, until SIGTERM. Logs are JSON lines on standard error."""
    import asyncio

    from tierkvd.telemetry import start_logging

    start_logging(log_level)
    address = Address(host, port)
    _check_reachable(address, api_key)
    choice = _ModelChoice(model, daemon)
    settings = {
        "device": device,
        "dtype": dtype,
        "block_tokens": block_tokens,
        "private_memory_bytes": parse_size(private_memory),
        "max_sequences": max_sequences,
        "max_batch_tokens": max_batch_tokens,
        "max_waiting": max_waiting,
        "num_threads": threads,
    }
    with _opened(choice, settings) as (engine, folder):
        from tierkv.serving.server import EngineServer, ServedModel

        served = ServedModel(name or folder.stem, engine.loaded.tokenizer)
        asyncio.run(_serve(EngineServer(engine, served, address=address, api_key=api_key), served.name))


def run(
    prompt: Annotated[str, typer.Argument(help="What to go on from; `-` reads it from standard input, but for a last line end.")],
    model: Annotated[Path | None, typer.Option(help="Folder with safetensors, or a file *.gguf; default: the bundled one.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is a message to the model, not the beginning of its text.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate at most.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Draw from so many of the likeliest tokens; 0: from all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that hold this share together.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same text.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="A text that ends the answer; may be given several times.")] = None,
    daemon: DaemonOption = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    block_tokens: BlockTokensOption = 16,
    private_memory: PrivateMemoryOption = "512MiB",
    threads: ThreadsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, when all is there.")] = False,
) -> None:
    """Generate from one prompt; the text comes as it is drawn."""
    import asyncio

    text = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt
    settings = {
        "device": device,
        "dtype": dtype,
        "block_tokens": block_tokens,
        "private_memory_bytes": parse_size(private_memory),
        "num_threads": threads,
    }
    _need_extras()
    from tierkv.engine.sampling import SamplingParams

    params = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=tuple(stop or ())
    )
    with _opened(_ModelChoice(model, daemon), settings) as (engine, folder):
        result = asyncio.run(_generate(engine, text, params, is_chat=chat, is_shown=not as_json))
    if as_json:
        print_json({"model": folder.stem, **dataclasses.asdict(result)})
    else:
        progress_console().print(_summary(result), style="dim", highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class _ModelChoice:
    """model — None: the bundled one. daemon — None: no daemon."""

    model: Path | None
    daemon: str | None


@dataclass(frozen=True, slots=True)
class _Result:
    """tokens_per_s — after the first token; None where there is no second."""

    prompt_tokens: int
    completion_tokens: int
    text: str
    finish_reason: str
    cached_tokens: int
    cached_tier: str | None
    ttft_ms: float
    tokens_per_s: float | None


def _need_extras() -> None:
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidRequestError(
            "the engine needs packages that are not installed", missing=", ".join(missing), command=INSTALL_COMMAND
        )


def _check_reachable(address: Address, api_key: str | None) -> None:
    if not address.is_loopback and not api_key:
        raise InvalidRequestError("an address that others can reach needs an API key, or listen on 127.0.0.1", host=address.host)


@contextlib.contextmanager
def _opened(choice: _ModelChoice, settings: dict[str, Any]) -> Iterator[tuple[Engine, Path]]:
    """A running engine and where its model is."""
    _need_extras()
    from tierkv.demo.model import bundled_model_folder
    from tierkv.engine.config import check_device
    from tierkv.engine.engine import EngineSettings, open_engine
    from tierkv.wire.addresses import default_run_folder

    checked = EngineSettings(**settings)
    check_device(checked.device)
    with progress_console().status("loading the model") as status:
        folder = choice.model or bundled_model_folder(status.update)
        daemon = str(default_run_folder()) if choice.daemon == DEFAULT_DAEMON else choice.daemon
        engine = open_engine(folder, daemon=daemon, settings=checked)
    with contextlib.closing(engine):
        yield engine, folder.resolve()


async def _serve(server: EngineServer, name: str) -> None:
    import asyncio
    import logging
    import os
    import signal

    from tierkv import __version__
    from tierkvd.telemetry import log_event

    log = logging.getLogger("tierkv.engine")
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    address = await server.start()
    try:
        log_event(log, "ready", version=__version__, pid=os.getpid(), model=name, url=f"http://{address}/v1")
        await stopping.wait()
        log_event(log, "stopping")
    finally:
        await server.stop()


async def _generate(engine: Engine, prompt: str, params: SamplingParams, *, is_chat: bool, is_shown: bool) -> _Result:
    from tierkv.clock import SystemClock
    from tierkv.engine.engine import FinishReason
    from tierkv.serving.chat import chat_prompt

    now_s = SystemClock().monotonic_s
    messages = [{"role": "user", "content": prompt}]
    started_s = now_s()
    stream = engine.generate(chat_prompt(engine.loaded.tokenizer, messages) if is_chat else prompt, params)
    text: list[str] = []
    times_s: list[float] = []
    reason = FinishReason.CANCELLED
    async for token in stream:
        times_s.append(now_s())
        text.append(token.text)
        reason = token.finish_reason or reason
        if is_shown:
            sys.stdout.write(token.text)
            sys.stdout.flush()
    if reason in {FinishReason.ERROR, FinishReason.CANCELLED}:
        raise InternalError("the engine failed; its log says why")
    if is_shown:
        sys.stdout.write("\n")
    request = stream.request
    return _Result(
        prompt_tokens=len(request.prompt),
        completion_tokens=len(times_s),
        text="".join(text),
        finish_reason=reason.value,
        cached_tokens=request.cached_tokens,
        cached_tier=request.cached_tier,
        ttft_ms=round(1000 * (times_s[0] - started_s), 1),
        tokens_per_s=round((len(times_s) - 1) / (times_s[-1] - times_s[0]), 1) if times_s[-1] > times_s[0] else None,
    )


def _summary(result: _Result) -> str:
    cached = f", {result.cached_tokens:,} of them from the {result.cached_tier} tier" if result.cached_tokens else ""
    rate = "" if result.tokens_per_s is None else f", then {result.tokens_per_s:.1f} tokens a second"
    return (
        f"{result.prompt_tokens:,} tokens of prompt{cached}; {result.completion_tokens:,} generated ({result.finish_reason}); "
        f"first token after {result.ttft_ms:,.0f} ms{rate}"
    )
