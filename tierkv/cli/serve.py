"""`tierkv serve`: the daemon in the foreground, for a terminal or a service manager."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the command to `app`."""
    app.command("serve")(serve)


def serve(
    data: Annotated[str | None, typer.Option(help="Folder that keeps the blocks.")] = None,
    run_dir: Annotated[str | None, typer.Option(help="Private folder for the sockets.")] = None,
    host_memory: Annotated[str | None, typer.Option(help="RAM for blocks, e.g. 4GiB. Default: a share of what is free.")] = None,
    disk: Annotated[
        str | None, typer.Option(help="Disk for blocks, e.g. 50GiB; 0 for none. Default: a share of what is free.")
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(help="Page pool of a device that engines map, e.g. cpu:2GiB or cuda:0:20GiB; may be repeated. Default: none."),
    ] = None,
    disk_write_budget: Annotated[
        str | None, typer.Option(help="Bytes that may be written to disk in 24 hours, e.g. 500GB. Default: no limit.")
    ] = None,
    durability: Annotated[str | None, typer.Option(help="Default promise: volatile, interval or strict.")] = None,
    policy: Annotated[str | None, typer.Option(help="Eviction policy: arc, arc-size or lru.")] = None,
    http: Annotated[str | None, typer.Option(help="Loopback address of /metrics, /healthz and /readyz, or off.")] = None,
    listen: Annotated[str | None, typer.Option(help="TCP address for clients without shared memory; off by default.")] = None,
    tls_cert: Annotated[str | None, typer.Option(help="Certificate chain (PEM) for --listen.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Private key (PEM) for --listen.")] = None,
    token_file: Annotated[str | None, typer.Option(help="File with the token that TCP clients must show.")] = None,
    arena_folder: Annotated[str | None, typer.Option(help="Private folder for the RAM tier. Default: in /dev/shm.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings; flags override it.")] = None,
) -> None:
    """Keep blocks for the engines on this machine, until SIGTERM. Logs are JSON lines on standard error."""
    from tierkv.config import load
    from tierkvd.daemon import serve as run_daemon

    flags: dict[str, object] = {
        "data": data,
        "run_dir": run_dir,
        "host_memory": host_memory,
        "disk": disk,
        "device": device or None,
        "disk_write_budget": disk_write_budget,
        "durability": durability,
        "policy": policy,
        "http": http,
        "listen": listen,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "token_file": token_file,
        "arena_folder": arena_folder,
        "log_level": log_level,
    }
    run_daemon(load(flags, config_file=config))
