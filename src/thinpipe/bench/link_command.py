"""The words of ``thinpipe bench link`` on the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from thinpipe.bench.link import FULL, Plan, bench_link
from thinpipe.bench.link_processes import RankError
from thinpipe.bench.link_sheet import link_sheet
from thinpipe.bench.link_stage import TINY, Work
from thinpipe.bench.link_variants import VARIANTS
from thinpipe.bench.network import NetworkError
from thinpipe.bench.options import Json, Output, Seed, Tiny, kept, progress, report
from thinpipe.suggest import instead_of


def link_command(
    *,
    bandwidth: Annotated[str, typer.Option(help="Of the wire, each way: as 50mbit or 200mbit, or full.")] = FULL,
    rounds: Annotated[int, typer.Option(min=1, help="How often each variant is timed; more are less noisy.")] = 5,
    variants: Annotated[str, typer.Option(help=f"What is timed, of {', '.join(VARIANTS)}.")] = ",".join(Plan.variants),
    namespaces: Annotated[
        bool,
        typer.Option(
            help="Join the processes by a wire of their own that the kernel slows, where that is possible (root, "
            "iproute2); else, or with --no-namespaces, by the loopback, on which thinpipe slows itself down."
        ),
    ] = True,
    tiny: Tiny = False,
    seed: Seed = 0,
    json: Json = False,
    output: Output = None,
) -> None:
    """What a slow wire costs a step, with and without a codec.

    The wire is between two processes; beside them runs PyTorch's own pipelining.

    Example: [bold]thinpipe bench link --bandwidth 50mbit --json[/bold]
    """
    plan = _plan(bandwidth, variants, rounds, TINY if tiny else Work(), seed)
    try:
        with progress((plan.rounds + 1) * len(plan.variants)) as done:
            record = bench_link(plan, namespaces=namespaces, tick=done)
    except (RankError, NetworkError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    kept(record, output=output, tiny=tiny)
    report(record.bench, link_sheet([record]), [record], output=output, tiny=tiny, as_json=False)
    if json:
        typer.echo(record.line())


def _plan(bandwidth: str, variants: str, rounds: int, work: Work, seed: int) -> Plan:
    names = tuple(dict.fromkeys(name.strip() for name in variants.split(",")))
    for name in names:
        if name not in VARIANTS:
            raise typer.BadParameter(f"no variant is called {name!r}; {instead_of(name, VARIANTS)}")
    plan = Plan("".join(bandwidth.lower().split()), names, rounds, work, seed)
    try:
        _ = plan.rate
    except ValueError as error:
        raise typer.BadParameter(f"{error}; or write --bandwidth {FULL}") from error
    return plan
