"""Test 20: hostile bytes for every decoder. Only errors of ours may come out, soon, and in bounded memory.

Each target is one part. Short runs change good inputs at random; long ones (`COVERAGE_FROM` executions and more) are
guided by coverage with atheris, where that is installed. Both run in a process of their own, so that a decoder that
takes the interpreter down is counted and not the end of the run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from crash.part import Counters, Part, Trial
from crash.protections import protection

COVERAGE_FROM = 50_000

SLOW_S = 0.1
MEMORY_GROWTH_BYTES_MAX = 300 << 20
_TRIES = 3
# For all executions of a process: only a hang takes this long.
_HANG_S = 300


def complaint(target: object, data: bytes) -> tuple[str, bool]:
    """(what is wrong, whether the input was refused) about one execution; "" if nothing is."""
    from fuzz.targets import TYPED

    for _ in range(_TRIES):
        refused, start = False, time.thread_time()
        try:
            target.run(data)  # type: ignore[attr-defined]
        except TYPED:
            refused = True
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:200]}", False
        if time.thread_time() - start < SLOW_S:
            return "", refused
    return f"slow: more than {SLOW_S} s of processor time, {_TRIES} times", refused


def run_target(name: str, trial: Trial) -> Counters:
    """`trial.cycles` executions of one target."""
    if trial.cycles >= COVERAGE_FROM and not cannot_guide():
        return _guided(name, trial)
    return _random(name, trial)


def cannot_guide() -> str:
    """Why inputs cannot be guided by coverage here."""
    return "" if importlib.util.find_spec("atheris") else "atheris is not installed (pip install '.[fuzz]')"


def _target(name: str) -> object:
    from fuzz.targets import TARGETS

    return next(target for target in TARGETS if target.name == name)


# -- at random --------------------------------------------------------------------------------------------------------


def _random(name: str, trial: Trial) -> Counters:
    target = _target(name)
    complaint(target, target.corpus()[0])  # type: ignore[attr-defined]  # imports happen here, not in each child
    answers, answer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Arrow's threads are not used by what the child runs
        child = os.fork()
    if not child:
        status = 1
        try:
            os.close(answers)
            signal.alarm(_HANG_S)
            os.write(answer, json.dumps(_execute(target, trial)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(answer)
    with os.fdopen(answers, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    trial.tick(trial.cycles)
    if status:
        counters = Counters(cycles=trial.cycles, broken=1)
        counters.note(f"{name}, seed {trial.seed}: the process ended with {status}: a crash or a hang")
        return counters
    return _counted(name, trial, json.loads(told))


def _execute(target: object, trial: Trial) -> dict[str, object]:
    from fuzz.mutate import mutated

    corpus = target.corpus()  # type: ignore[attr-defined]
    refused, bad, first = 0, 0, ""
    memory_bytes = _memory_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    for cycle in range(trial.cycles):
        data = corpus[cycle] if cycle < len(corpus) else mutated(corpus, random.Random(f"{trial.seed}/{cycle}"))
        wrong, was_refused = complaint(target, data)
        refused += was_refused
        bad += bool(wrong)
        if wrong and not first:
            first = f"cycle {cycle}: {wrong} for {data[:400].hex()}"
    grown = _memory_bytes("VmHWM") - memory_bytes
    if grown > MEMORY_GROWTH_BYTES_MAX:
        bad, first = bad + 1, first or f"memory grew by {grown >> 20} MiB"
    return {"executed": trial.cycles, "refused": refused, "bad": bad, "first": first}


def _memory_bytes(what: str) -> int:
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def _counted(name: str, trial: Trial, told: dict[str, object]) -> Counters:
    counters = Counters(cycles=int(str(told["executed"])), broken=int(str(told["bad"])))
    counters.seen[f"refused {name}"] = int(str(told["refused"]))
    if told["first"]:
        counters.note(f"{name}, seed {trial.seed}, {told['first']}")
    return counters


# -- guided by coverage -----------------------------------------------------------------------------------------------


def _guided(name: str, trial: Trial) -> Counters:
    corpus = trial.directory / f"corpus-{name}"
    corpus.mkdir(exist_ok=True)
    for number, data in enumerate(_target(name).corpus()):  # type: ignore[attr-defined]
        (corpus / f"seed-{number}").write_bytes(data)
    tests = Path(__file__).resolve().parents[1]
    path = os.pathsep.join(str(tests.parent / root) for root in ("tests", "storage", "connector"))
    done = subprocess.run(
        [
            sys.executable, "-m", "fuzz.guided", name, f"-runs={trial.cycles}", f"-seed={trial.seed % (1 << 31) or 1}",
            "-rss_limit_mb=512", "-timeout=20", "-max_len=8192", "-print_final_stats=1",
            f"-artifact_prefix={trial.directory}/{name}-", str(corpus),
        ],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    trial.tick(trial.cycles)
    executed = re.search(r"stat::number_of_executed_units:\s+(\d+)", done.stderr)
    counters = Counters(cycles=int(executed[1]) if executed else 0)
    if peak := re.search(r"stat::peak_rss_mb:\s+(\d+)", done.stderr):
        counters.seen[f"executions under {512} MiB, {name}"] = counters.cycles if int(peak[1]) < 512 else 0
    if done.returncode:
        counters.broken = 1
        inputs = [path.read_bytes().hex() for path in trial.directory.glob(f"{name}-*") if path.is_file()]
        tail = [line for line in done.stderr.splitlines() if "rror" in line][:3]
        counters.note(f"{name}, seed {trial.seed}: {' / '.join(tail)[:500]} for {' '.join(inputs)[:800]}")
    return counters


# -- teeth ------------------------------------------------------------------------------------------------------------


@protection("frame_check", "a frame's lengths are compared with the bytes that are there before a field is read")
def _without_frame_check() -> Iterator[None]:
    from rmq_store.format import message
    from rmq_store.format.frame_check import FrameCheck

    def believe(view: memoryview, position: int, limit: int, **_: object) -> FrameCheck:
        return FrameCheck("message", int.from_bytes(view[position : position + 4], "big", signed=True), "")

    kept = message.check_frame
    message.check_frame = believe
    yield
    message.check_frame = kept


@protection("json_depth", "JSON tables are nested 64 levels deep at most")
def _without_json_depth() -> Iterator[None]:
    from rmq_store.format import config_json

    kept = config_json.DEPTH_MAX
    config_json.DEPTH_MAX = 1 << 30
    yield
    config_json.DEPTH_MAX = kept


# -- parts ------------------------------------------------------------------------------------------------------------

_TEETH = {"frame": "frame_check", "config_json": "json_depth"}
# Executions of the short form, and thousands of them in an hour's run: by what one costs.
_SCALES = {
    "frame": (6000, 400), "frames": (600, 20), "properties": (1500, 60), "compression": (3000, 200), "ids": (4000, 400),
    "consume_queue": (2500, 100), "index": (1200, 40), "checkpoint": (4000, 400), "config_json": (3000, 150),
    "tables": (2500, 80), "store_file": (2500, 80), "progress": (4000, 150), "unit": (4000, 400), "staged": (2000, 80),
    "pop_journal": (2000, 80), "receipt_handle": (4000, 400), "sql92": (3000, 200), "spark_offsets": (4000, 300),
}  # fmt: skip

PARTS = tuple(
    Part(
        f"decoders {name}", "20", f"hostile bytes for the decoder of {name.replace('_', ' ')}", "executions",
        harness=short, crash=thousands * 1000, soak=10_000_000, chunk=max(thousands * 1000, COVERAGE_FROM),
        run=partial(run_target, name), protections=(_TEETH[name],) if name in _TEETH else (), bites_within=short,
    )
    for name, (short, thousands) in _SCALES.items()
)  # fmt: skip
