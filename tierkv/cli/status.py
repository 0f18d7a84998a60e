"""`tierkv status`: what a daemon holds, how it is doing, and what does not work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from tierkv.model.outcomes import StoreStats


def register(app: typer.Typer) -> None:
    """Adds the command to `app`."""
    app.command("status")(status)


def status(
    address: Annotated[str | None, typer.Option(help="Run folder, or host:port. Default: the user's run folder.")] = None,
    run_dir: Annotated[str | None, typer.Option(help="The run folder; the same as --address with a folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show tiers, fill, hits and misses, sessions and leases of a running daemon."""
    from tierkv.cli.output import only_one, print_json, result_console
    from tierkv.client.observer import Observer

    only_one(address=address, run_dir=run_dir)
    with Observer(address or run_dir) as daemon:
        stats = daemon.stats()
    if as_json:
        print_json(stats)
        return
    console = result_console()
    console.print(_tiers_table(stats))
    console.print(_totals(stats))
    for line in _policy_lines(stats):
        console.print(line)
    for sentence in stats.degraded:
        console.print(f"[bold red]degraded:[/] {sentence}")


def _tiers_table(stats: StoreStats) -> Table:
    from rich.table import Table

    lookups = sum(stats.hits.values()) + sum(stats.misses.values())
    table = Table(title=f"tierkvd {stats.version}, up {stats.uptime_s:,.0f} s")
    for column in ("tier", "used", "capacity", "fill", "blocks", "hits", "hit ratio"):
        table.add_column(column, justify="left" if column == "tier" else "right")
    for tier in stats.tiers:
        hits = stats.hits.get(tier.name, 0)
        table.add_row(
            tier.name,
            _size(tier.used_bytes),
            _size(tier.capacity_bytes),
            f"{tier.used_bytes / max(1, tier.capacity_bytes):.0%}",
            f"{tier.blocks:,}",
            f"{hits:,}",
            f"{hits / lookups:.1%}" if lookups else "-",
        )
    return table


def _totals(stats: StoreStats) -> str:
    misses = ", ".join(f"{reason} {count:,}" for reason, count in sorted(stats.misses.items())) or "none"
    return f"misses: {misses}\nsessions: {stats.sessions}   leases: {stats.leases}   reservations: {stats.reservations}"


def _policy_lines(stats: StoreStats) -> list[str]:
    """One line a tier on what its policy does, and one on what the disk may still take."""
    lines = [
        f"{policy.tier} policy: {policy.name}, once {_size(policy.t1_bytes)}, again {_size(policy.t2_bytes)}, "
        f"expected {_size(policy.waiting_bytes)}; remembers {policy.b1_keys + policy.b2_keys:,} gone, "
        f"{policy.ghost_hits_b1 + policy.ghost_hits_b2:,} have come back so far; "
        f"p {_size(int(policy.p))}, w {policy.w:.2f}"
        for policy in stats.policies
    ]
    if stats.write_budget_left_bytes is not None:
        lines.append(f"write budget left: {_size(stats.write_budget_left_bytes)}")
    return lines


def _size(num_bytes: int) -> str:
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
