"""`python -m crash.business --kills N --database KIND --seed S`: part 29 by hand; prints its counters as JSON."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import click

from crash.business import kills
from crash.part import Trial
from crash.protections import PROTECTIONS, without
from crash.state import DEFAULT_SEED


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--kills", "count", type=click.IntRange(min=1), default=kills.LIFE, show_default=True)
@click.option("--database", "kind", type=click.Choice(kills.KINDS), default="sqlite", show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=DEFAULT_SEED, show_default=True)
@click.option("--without", "tooth", metavar="PROTECTION", help="Without this protection of the engine.")
def main(count: int, kind: str, seed: int, tooth: str | None) -> None:
    """Kill both sides of a business. Exit status 1: a violation; what was left of that life stays where it is."""
    if reason := kills.cannot_run(kind):
        raise click.ClickException(reason)
    if tooth is not None and tooth not in PROTECTIONS:
        raise click.UsageError(f"no protection {tooth}; there are {', '.join(sorted(PROTECTIONS))}")
    done, begun_s = 0, time.monotonic()

    def tick(cycles: int) -> None:
        nonlocal done
        done += cycles
        if sys.stderr.isatty():
            click.echo(f"\r{done:,} of {count:,} kills, {time.monotonic() - begun_s:,.0f} s ", err=True, nl=False)

    directory = Path(tempfile.mkdtemp(prefix="rmq-business-"))
    with without(tooth) if tooth else contextlib.nullcontext():
        counters = kills.run(kind, Trial(count, seed, directory, tick))
    if sys.stderr.isatty():
        click.echo(err=True)
    # Not `asdict` of the Counter: it takes it apart.
    told = asdict(counters) | {"seen": dict(sorted(counters.seen.items())), "violations": counters.violations}
    click.echo(json.dumps({"database": kind, "seed": seed} | told, indent=1))
    if counters.violations:
        click.echo(f"see {directory}", err=True)
        sys.exit(1)
    directory.rmdir()


if __name__ == "__main__":
    main()
