"""Test 20: hostile bytes for every decoder. Only errors of ours may come out, soon, and in bounded memory.

Each target is one part. Short runs change good inputs at random. Of the executions of a long one the first `GUIDED` are
guided by coverage with atheris, where that is installed, and the others change what those have found at random: that
costs a third, because nothing is counted. Both run in processes of their own, so that a decoder that takes the
interpreter down is counted and not the end of the run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from crash.part import Counters, Part, Trial
from crash.protections import protection

if TYPE_CHECKING:
    from fuzz.targets import Target

GUIDED = 50_000
CHUNK = 250_000

SLOW_S = 0.1
MEMORY_GROWTH_BYTES_MAX = 300 << 20
_TRIES = 3
# For `_HANG_EXECUTIONS`: only a hang takes this long.
_HANG_S = 300
_HANG_EXECUTIONS = 10_000


def complaint(target: Target, data: bytes) -> tuple[str, bool]:
    """(what is wrong, whether the input was refused) about one execution; "" if nothing is."""
    from fuzz.targets import TYPED

    for _ in range(_TRIES):
        refused, start = False, time.thread_time()
        try:
            target.run(data)
        except TYPED:
            refused = True
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:200]}", False
        if time.thread_time() - start < SLOW_S:
            return "", refused
    return f"slow: more than {SLOW_S} s of processor time, {_TRIES} times", refused


def run_target(name: str, trial: Trial) -> Counters:
    """`trial.cycles` executions of one target."""
    target = _target(name)
    if trial.cycles < GUIDED or cannot_guide():
        return _random(target, trial, target.corpus(), trial.cycles)
    folder = trial.directory / f"corpus-{name}"
    counters = _guided(target, trial, folder, GUIDED)
    if trial.cycles > GUIDED:
        found = [path.read_bytes() for path in sorted(folder.iterdir())]
        counters.add(_random(target, trial, found, trial.cycles - GUIDED))
    return counters


def cannot_guide() -> str:
    """Why inputs cannot be guided by coverage here."""
    return "" if importlib.util.find_spec("atheris") else "atheris is not installed (pip install '.[fuzz]')"


def _target(name: str) -> Target:
    from fuzz.targets import TARGETS

    return next(target for target in TARGETS if target.name == name)


# -- at random --------------------------------------------------------------------------------------------------------


def _random(target: Target, trial: Trial, corpus: Sequence[bytes], executions: int) -> Counters:
    complaint(target, corpus[0])  # imports happen here, not in each child
    answers, answer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Arrow's threads are not used by what the child runs
        child = os.fork()
    if not child:
        status = 1
        try:
            os.close(answers)
            os.write(answer, json.dumps(_execute(target, trial.seed, corpus, executions)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(answer)
    with os.fdopen(answers, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    trial.tick(executions)
    if status:
        counters = Counters(cycles=executions, broken=1)
        counters.note(f"{target.name}, seed {trial.seed}: the process ended with {status}: a crash or a hang")
        return counters
    return _counted(target.name, trial, json.loads(told))


def _execute(target: Target, seed: int, corpus: Sequence[bytes], executions: int) -> dict[str, object]:
    from fuzz.mutate import mutated

    refused, bad, first = 0, 0, ""
    memory_bytes = _memory_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    for cycle in range(executions):
        if cycle % _HANG_EXECUTIONS == 0:
            signal.alarm(_HANG_S)
        data = corpus[cycle] if cycle < len(corpus) else mutated(corpus, random.Random(f"{seed}/{cycle}"))
        wrong, was_refused = complaint(target, data)
        refused += was_refused
        bad += bool(wrong)
        if wrong and not first:
            first = f"cycle {cycle}: {wrong} for {data[:400].hex()}"
    grown = _memory_bytes("VmHWM") - memory_bytes
    if grown > MEMORY_GROWTH_BYTES_MAX:
        bad, first = bad + 1, first or f"memory grew by {grown >> 20} MiB"
    return {"executed": executions, "refused": refused, "bad": bad, "first": first}


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


def _guided(target: Target, trial: Trial, corpus: Path, executions: int) -> Counters:
    """Fills `corpus`, a folder, with inputs that each reach something new."""
    name = target.name
    corpus.mkdir()
    for number, data in enumerate(target.corpus()):
        (corpus / f"seed-{number}").write_bytes(data)
    tests = Path(__file__).resolve().parents[1]
    path = os.pathsep.join(str(tests.parent / root) for root in ("tests", "storage", "connector"))
    done = subprocess.run(
        [
            sys.executable, "-m", "fuzz.guided", name, f"-runs={executions}", f"-seed={trial.seed % (1 << 31) or 1}",
            "-rss_limit_mb=512", "-timeout=20", "-max_len=8192", "-print_final_stats=1",
            f"-artifact_prefix={trial.directory}/{name}-", str(corpus),
        ],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    trial.tick(executions)
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
    from rmq_store.format.frames import stored_message
    from rmq_store.format.frames.frame_check import FrameCheck

    def believe(view: memoryview, position: int, limit: int, **_: object) -> FrameCheck:
        return FrameCheck("message", int.from_bytes(view[position : position + 4], "big", signed=True), "")

    kept = stored_message.check_frame
    stored_message.check_frame = believe
    yield
    stored_message.check_frame = kept


@protection("json_depth", "JSON tables are nested 64 levels deep at most")
def _without_json_depth() -> Iterator[None]:
    from rmq_store.format.tables import config_json, fastjson

    kept = fastjson.DEPTH_MAX
    config_json.DEPTH_MAX = fastjson.DEPTH_MAX = 1 << 30  # type: ignore[misc]
    yield
    config_json.DEPTH_MAX = fastjson.DEPTH_MAX = kept  # type: ignore[misc]


@protection("remoting_lengths", "a length in a binary header of the network is compared with the header's end")
def _without_remoting_lengths() -> Iterator[None]:
    from rmq_store.protocol.wire import binary_header

    def believe(header: bytes, at: int, form: struct.Struct, _: str) -> tuple[int, int]:
        return form.unpack_from(header, at)[0], at + form.size

    kept = binary_header._length
    binary_header._length = believe
    yield
    binary_header._length = kept


@protection("errors_answered", "an error that a processor raises becomes the answer to its request")
def _without_errors_answered() -> Iterator[None]:
    from rmq_store.server.requests.dispatcher import Dispatcher
    from rmq_store.server.requests.request import Request

    def believe(dispatcher: Dispatcher, processor: Callable[[Request], object], request: Request) -> None:
        request.reply(processor(request))
        request.done()

    kept = Dispatcher.run
    Dispatcher.run = believe
    yield
    Dispatcher.run = kept


@protection("records_checked", "a record that a master sends is checked before it is stored")
def _without_records_checked() -> Iterator[None]:
    import numpy as np

    from rmq_store.replica import feed

    def believe(data: memoryview, low: int, stop: int, *_: object) -> tuple[np.ndarray, np.ndarray]:
        places, sizes = [], []
        while low + 4 <= stop and 91 <= (size := int.from_bytes(data[low : low + 4], "big")) <= stop - low:
            places.append(low)
            sizes.append(size)
            low += size
        return np.array(places, np.int64), np.array(sizes, np.int64)

    kept = feed.sound_frames
    feed.sound_frames = believe
    yield
    feed.sound_frames = kept


@protection("reports_checked", "a slave begins inside of the log")
def _without_reports_checked() -> Iterator[None]:
    from rmq_store.server.ha.slave_connection import SlaveConnection

    def believe(slave: SlaveConnection, offset: int) -> None:
        slave.position = offset

    kept = SlaveConnection._begin
    SlaveConnection._begin = believe  # type: ignore[method-assign]
    yield
    SlaveConnection._begin = kept  # type: ignore[method-assign]


# -- parts ------------------------------------------------------------------------------------------------------------

_TEETH = {
    "frame": "frame_check",
    "config_json": "json_depth",
    "remoting": "remoting_lengths",
    "server": "errors_answered",
    "transfers": "records_checked",
    "reports": "reports_checked",
}
# Executions of the short form, and thousands of them in an hour's run: by what one costs.
_SCALES = {
    "frame": (6000, 400), "frames": (600, 20), "properties": (1500, 60), "compression": (3000, 200), "ids": (4000, 400),
    "consume_queue": (2500, 100), "index": (1200, 40), "checkpoint": (4000, 400), "config_json": (3000, 150),
    "tables": (2500, 80), "store_file": (2500, 80), "progress": (4000, 150), "unit": (4000, 400), "staged": (2000, 80),
    "pop_journal": (2000, 80), "remoting": (2000, 60), "pull_answers": (4000, 300), "java_json": (3000, 150),
    "sent_requests": (2000, 60), "server": (600, 20), "receipt_handle": (4000, 400), "sql92": (3000, 200),
    "spark_offsets": (4000, 300), "transfers": (400, 20), "reports": (2000, 100),
}  # fmt: skip


def _title(name: str) -> str:
    if name == "server":
        return "hostile bytes of a client for a server, from the connection to the store"
    if name == "transfers":
        return "hostile bytes of a master for a feeder, from the connection to the log"
    if name == "reports":
        return "hostile bytes of a slave for a master, at its HA port"
    return f"hostile bytes for the decoder of {name.replace('_', ' ')}"


PARTS = tuple(
    Part(
        f"decoders {name}", "20", _title(name), "executions",
        harness=short, crash=thousands * 1000, soak=10_000_000, chunk=CHUNK,
        run=partial(run_target, name), protections=(_TEETH[name],) if name in _TEETH else (), bites_within=short,
    )
    for name, (short, thousands) in _SCALES.items()
)  # fmt: skip
