"""``outgrow calibrate``: measures how fast this machine is."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outgrow.app.messages import log_message
from outgrow.core.errors import InputError

if TYPE_CHECKING:
    from outgrow.planning.hardware.profile import MachineProfile


def calibrate(
    workers: Annotated[
        int | None, typer.Option(help="Processes that measure at the same time; torchrun's own under torchrun.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    scratch: Annotated[
        Path | None, typer.Option(help="Folder on the disk to measure.", show_default="that of temporary files")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the profile.", show_default="that of this host")] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write.", show_default="one in the cache, which plans on this host use")
    ] = None,
    from_: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="RUN", help="Learn from a run that was trained here, instead; may be given several times."
        ),
    ] = None,
    learned: Annotated[bool, typer.Option("--learned", help="Show what runs have taught, instead.")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Forget what runs have taught, instead.")] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="With --from: folder to look in first for a data set's files.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how fast this machine computes and moves rows, in under a minute, and write a dated profile.

    Runs of ten seconds and more teach how far estimates are off, and correct later ones: --learned shows that.
    """
    measuring = {"--workers": workers, "--scratch": scratch, "--name": name, "--out": out}
    chosen = [flag for flag, given in (("--from", from_), ("--learned", learned), ("--reset", reset)) if given]
    if chosen:
        _require_alone(chosen, [flag for flag, given in measuring.items() if given is not None])
        _learn(from_ or (), data_dir, forget=reset, as_json=as_json)
        return
    from outgrow.app.plan.machine_profiles import CalibrationTask, measure_machine, profile_cache_path
    from outgrow.app.runs.workers import Workers, resolve_num_workers
    from outgrow.planning.hardware.profile import write_profile

    settings = Workers(number=resolve_num_workers(workers), device=device)
    log_message("measuring this machine: other programs that run on it make it look slower")
    started = time.perf_counter()
    profile = measure_machine(CalibrationTask(device=device, scratch=scratch, name=name), settings)
    # Under torchrun only worker 0 has the profile and reports it.
    if profile is None:
        return
    path = out or profile_cache_path(profile)
    write_profile(profile, path)
    log_message(f"measured in {time.perf_counter() - started:.1f} s, written to {path}")
    if as_json:
        print(json.dumps(profile.as_dict()))
    else:
        _print_profile(profile)


def _require_alone(chosen: Sequence[str], measuring: Sequence[str]) -> None:
    """Check that one thing is asked for."""
    if len(chosen) > 1 or measuring:
        raise InputError(
            f"{chosen[0]} stands alone",
            needed="one of --from, --learned and --reset, or options of a measurement",
            got=", ".join([*chosen, *measuring]),
            repair=f"leave {', '.join([*chosen[1:], *measuring])} out",
        )


def _learn(runs: Sequence[Path], data_dir: Path | None, *, forget: bool, as_json: bool) -> None:
    """Learn from runs, or forget what they have taught; show what is known then."""
    from outgrow.app.learned_runs import describe_learned, show_learned
    from outgrow.app.plan.machine_profiles import list_run_logs
    from outgrow.app.report.data import read_run
    from outgrow.app.run_learning import learn_from_runs, rebuild_run

    if forget:
        for path in list_run_logs():
            path.unlink()
            log_message(f"forgotten: {path}")
        return
    for path, count in learn_from_runs([rebuild_run(read_run(run), data_dir) for run in runs]).items():
        log_message(f"{count} runs are kept in {path}")
    found = describe_learned()
    if as_json:
        print(json.dumps(found))
    else:
        show_learned(found)


def _print_profile(profile: MachineProfile) -> None:
    from rich.console import Console
    from rich.table import Table

    from outgrow.planning.hardware.profile import RateByWidth

    def format_rates(rates: RateByWidth, unit: float) -> list[str]:
        return [f"{rate / unit:,.2f}" for rate in rates.per_second.values()]

    device = profile.device
    host = profile.host
    widths = [f"{width} wide" for width in device.product.per_second]
    table = Table(title=f"{profile.name}, {profile.date}: {profile.source}", title_justify="left")
    for column in ("", *widths):
        table.add_column(column, justify="right" if column else "left")
    together = "all workers of a host together" if device.is_shared else "each device"
    table.add_row(f"matrix products, Gflop/s, {together}", *format_rates(device.product, 1e9))
    table.add_row(f"sums over in-neighbours in caches, GB/s, {together}", *format_rates(device.near, 1e9))
    table.add_row(f"sums over in-neighbours in memory, GB/s, {together}", *format_rates(device.far, 1e9))
    table.add_row("rows taken from memory, GB/s, one thread", *format_rates(host.gather, 1e9))
    Console().print(table)
    facts = Table(show_header=False)
    facts.add_row(f"{device.kind}: {device.name}", f"{device.memory_bytes / 2**30:,.1f} GiB")
    facts.add_row("copy within its memory", f"{device.copy / 1e9:,.2f} GB/s read and written")
    facts.add_row("bias, activation, dropout", f"{device.finish / 1e6:,.0f} million numbers/s, forward and backward")
    scores = "; ".join(f"{rate / 1e6:,.0f} at degree {degree}" for degree, rate in device.score.per_second.items())
    facts.add_row("attention", f"million scores of edges/s, forward and backward: {scores}")
    facts.add_row("new edges made ready", f"{device.fresh / 1e6:,.1f} million edges/s")
    facts.add_row("smallest layer", f"{device.layer_seconds * 1e6:,.0f} us in a step")
    facts.add_row("smallest step", f"{device.step_overhead_seconds * 1e6:,.0f} us beside its layers")
    facts.add_row("whole steps of training", f"{device.efficiency:.0%} of these rates")
    facts.add_row("neighbours drawn, one thread", f"{host.sampled_edges / 1e6:,.1f} million edges/s")
    for link, rate in profile.links.items():
        text = f"{rate.bytes_per_second / 1e9:,.2f} GB/s"
        if rate.message_seconds:
            text += f", {rate.message_seconds * 1e6:,.0f} us a message"
        facts.add_row(link.value.replace("_", " "), text)
    Console().print(facts)
