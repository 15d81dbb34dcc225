"""Checks of the interpreter, its packages, and the limits of the machine."""

from __future__ import annotations

import resource
import struct
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

from rmq_store.cli.checks import FAIL, OK, WARN, Finding

PYTHON_LEAST = (3, 11)

# setup.py, install_requires.
PACKAGES = {"numpy": (2, 0), "pyarrow": (18, 0), "click": (8, 1), "rich": (13, 7)}

# A store maps a few files for each queue that is read; Linux gives 65,530.
MAPS_LEAST = 65_530
FILES_LEAST, FILES_ENOUGH = 256, 1024


def python(version: tuple[int, ...] = tuple(sys.version_info[:3]), platform: str = sys.platform) -> Finding:
    """Check the interpreter that runs this command."""
    text = f"{'.'.join(map(str, version))}, {sys.executable}"
    if platform != "linux" or struct.calcsize("P") < 8:
        return Finding("python", FAIL, f"{text} on {platform}", "stores are shared by processes on 64-bit Linux only")
    if version < PYTHON_LEAST:
        return Finding("python", FAIL, text, f"use Python {'.'.join(map(str, PYTHON_LEAST))} or newer")
    return Finding("python", OK, text)


def packages(version: Callable[[str], str] = installed_version) -> list[Finding]:
    """Check the packages that this package needs at run time."""
    return [_package(name, least, version) for name, least in PACKAGES.items()]


def _package(name: str, least: tuple[int, int], version: Callable[[str], str]) -> Finding:
    wanted = f"{name}>={least[0]}.{least[1]}"
    fix = f"{sys.executable} -m pip install '{wanted}'"
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding(name, FAIL, "not installed", fix)
    if version_tuple(found) < least:
        return Finding(name, FAIL, f"{found}, older than {least[0]}.{least[1]}", fix)
    return Finding(name, OK, found)


def version_tuple(text: str) -> tuple[int, int]:
    """The first two numbers of a version: (4, 3) of `4.3.0.dev1`."""
    parts = [part for part in text.split(".")[:2] if part.isdigit()]
    return int(parts[0]) if parts else 0, int(parts[1]) if len(parts) > 1 else 0


def engine() -> Finding:
    """Check for the C extension; without it Python does the same work, but slower."""
    from rmq_store import extension

    lack = extension.lack()
    if lack is None:
        return Finding("engine", OK, "fast: the C extension is loaded")
    slow = "all of it works in Python only, and takes two to three times the processor time"
    return Finding("engine", WARN, f"{lack.reason}: {slow}", lack.fix)


def limits(files: int | None = None, maps_file: Path = Path("/proc/sys/vm/max_map_count")) -> list[Finding]:
    """Check the limits of open files and of memory maps."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if files is None else files
    fix = f"ulimit -n {FILES_ENOUGH}, or LimitNOFILE= of the service"
    state = OK if soft >= FILES_ENOUGH or soft < 0 else WARN if soft >= FILES_LEAST else FAIL
    found = [Finding("open files", state, "no limit" if soft < 0 else f"at most {soft}", "" if state == OK else fix)]
    try:
        maps = int(maps_file.read_text())
    except (OSError, ValueError) as error:
        return [*found, Finding("maps", WARN, f"{maps_file} cannot be read: {error}", "look it up by hand")]
    if maps < MAPS_LEAST:
        fix = f"sysctl -w vm.max_map_count={MAPS_LEAST}"
        return [*found, Finding("maps", WARN, f"at most {maps} for a process", fix)]
    return [*found, Finding("maps", OK, f"at most {maps} for a process")]


def time_zone(environment: Mapping[str, str], names: tuple[str, ...] = time.tzname) -> Finding:
    """Check TZ. The hours of deleteWhen are local ones, and a TZ that does not exist silently means UTC."""
    wanted = environment.get("TZ", "")
    shown = f"{names[0]} ({time.strftime('%z')}): the hours of deleteWhen are these"
    if wanted and "/" in wanted and not (Path("/usr/share/zoneinfo") / wanted.lstrip(":")).is_file():
        return Finding("time zone", WARN, f"TZ={wanted} is unknown, so times are UTC", "install tzdata, or set TZ")
    return Finding("time zone", OK, shown)
