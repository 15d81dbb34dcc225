"""File systems in files, mounted for a part and gone with it, whatever becomes of the part.

Everything is mounted in a mount namespace of a process of its own, with loop devices that free themselves: when that
process is gone, even killed, so are mounts and devices.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import shutil
import signal
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

from crash.part import Counters, Trial

_CLONE_NEWNS = 0x00020000
_PR_SET_PDEATHSIG = 1
_FREED_WITHIN_S = 30

_libc = ctypes.CDLL(None, use_errno=True)


def cannot_mount(*programs: str) -> str:
    """Why file systems in files cannot be used here; "" if they can. `programs` are needed besides mount."""
    if os.geteuid() != 0:
        return "only root can mount"
    if not Path("/dev/loop-control").exists():
        return "no loop devices"
    for program in ("mount", "umount", *programs):
        if find(program) is None:
            return f"no {program} (in Debian: package {'xfsprogs' if 'xfs' in program else 'e2fsprogs or mount'})"
    if _libc.unshare(0) != 0:
        return "no mount namespaces"
    return ""


def find(program: str) -> str | None:
    """Where a program of the administrator's is."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def call(program: str, *arguments: object) -> None:
    """Run a program of the administrator's; what it says comes with the error."""
    done = subprocess.run([find(program) or program, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{program} {' '.join(map(str, arguments))}: {done.stderr.strip()}")


@contextlib.contextmanager
def mounted(source: Path | str, directory: Path, *options: str) -> Iterator[Path]:
    """A mounted file system, unmounted at the end: nothing of it is in the page cache then. OSError if it is in use."""
    directory.mkdir(exist_ok=True)
    call("mount", *options, source, directory)
    try:
        yield directory
    except BaseException:
        call("umount", "-l", directory)  # the traceback may hold on to a map
        raise
    gc.collect()  # maps of closed stores
    call("umount", directory)


def file_system(path: Path, size_bytes: int, program: str, *options: str) -> Path:
    """A new file with a file system in it; it takes space only as it fills."""
    with path.open("wb") as file:
        file.truncate(size_bytes)
    call(program, *options, path)
    return path


def die_with_parent() -> None:
    """In a forked child that works on such a file system: it must not outlive the namespace."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def in_own_mounts(work: Callable[[Trial], Counters], trial: Trial) -> Counters:
    """`work(trial)` in a process whose mounts nobody else sees. RuntimeError if it fails, or leaves a device behind."""
    told, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        _work(work, trial, telling)
    os.close(telling)
    found, error = None, "it died"
    try:
        with os.fdopen(told, encoding="utf-8") as lines:
            for line in lines:
                answer = json.loads(line)
                trial.tick(answer.get("tick", 0))
                error = answer.get("error", error)
                if "counters" in answer:
                    found = Counters(**{**answer["counters"], "seen": Counter(answer["counters"]["seen"])})
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    _wait_until_freed(trial.directory)
    if found is None:
        raise RuntimeError(error)
    return found


def _work(work: Callable[[Trial], Counters], trial: Trial, fd: int) -> None:
    def tell(answer: dict[str, object]) -> None:
        os.write(fd, json.dumps(answer).encode() + b"\n")

    try:
        die_with_parent()
        if _libc.unshare(_CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        call("mount", "--make-rprivate", "/")
        counters = work(trial._replace(tick=lambda cycles: tell({"tick": cycles})))
        tell({"counters": {each.name: getattr(counters, each.name) for each in fields(counters)}})
    except BaseException:
        tell({"error": traceback.format_exc()})
    finally:
        os._exit(0)


def _wait_until_freed(directory: Path) -> None:
    deadline_s = time.monotonic() + _FREED_WITHIN_S
    while left := devices_of(directory):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"loop devices are left behind: {left}")
        time.sleep(0.02)


def devices_of(directory: Path) -> list[str]:
    """Loop devices whose file lies below a directory."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if path.read_text().startswith(f"{directory}/"):
                found.append(path.parts[3])
    return found
