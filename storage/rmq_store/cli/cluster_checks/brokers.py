"""Versions, clocks, settings, disks and load of brokers, by what they say about themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from rmq_store.cli.checks import FAIL, OK, WARN, Finding
from rmq_store.cli.cluster_checks.processes import Process

SKEW_WARN_S: Final = 5.0
V4_9_0: Final = 393
"""MQVersion.V4_9_0."""
_DISK_WARN, _DISK_FAIL = 0.75, 0.90
_BUSY_MS: Final = 200
"""osPageCacheBusyTimeOutMills and waitTimeMillsInSendQueue: longer waits are answered with code 2."""
_MADE_WITH: Final = (
    "a store keeps the setting with which it was made: `rmq init --config FILE` makes one with autoCreateTopicEnable="
    "false in FILE. Of this one, `rmq broker run --acl FILE` with rights for named topics keeps clients from new topics"
)
_RUNTIME = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")


def checks(processes: Sequence[Process]) -> list[Finding]:
    """All checks, process by process; those that do not answer are left out."""
    answering = [process for process in processes if not process.error]
    found = [finding for process in answering for finding in _of_process(process)]
    if len({process.is_5x for process in answering if not process.is_served_store}) > 1:
        text = "brokers of 4.x and of 5.x: messages with a deliver time are refused at those of 4.x, and POP needs 5.x"
        found.append(Finding("versions", WARN, text, "end the upgrade of all brokers"))
    return found


def _of_process(process: Process) -> Iterator[Finding]:
    yield version(process)
    if process.refusals:
        text = f"{process.name} tells no settings or figures: {process.refusals[0]}"
        yield Finding("rights", WARN, text, "run doctor with the credentials of an administrator to see them")
    if process.figures is not None:
        yield clock(process)
        yield disk(process)
        yield load(process)
    if process.settings is not None:
        yield from settings(process)


def version(process: Process) -> Finding:
    """Check that the version is one that this project is tested with."""
    told = (process.figures or {}).get("brokerVersionDesc") or ("5.x" if process.is_5x else "4.x")
    text = f"{process.name}: {told}"
    if process.version < V4_9_0:
        return Finding("version", WARN, f"{text}, older than 4.9", "brokers of 4.9 and 5.x are tested; upgrade it")
    return Finding("version", OK, text)


def clock(process: Process) -> Finding:
    """Compare the broker's clock with this machine's: start time and run time of the process add up to its time."""
    figures = process.figures or {}
    run = _RUNTIME.search(figures.get("runtime", ""))
    boot = figures.get("bootTimestamp", "")
    if run is None or not boot.isdecimal():
        return Finding("clock", OK, f"{process.name}: not told")
    days, hours, minutes, seconds = map(int, run.groups())
    least_ms = int(boot) + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    # Whole seconds: the broker's time lies in [least, least + 1 s), and was read between the two times here.
    ahead_s, behind_s = (least_ms - process.answered_ms) / 1000, (process.asked_ms - least_ms - 1000) / 1000
    if max(ahead_s, behind_s) <= SKEW_WARN_S:
        return Finding("clock", OK, f"{process.name}: as here, within {SKEW_WARN_S:.0f} s")
    way = f"{ahead_s:.0f} s ahead of" if ahead_s > behind_s else f"{behind_s:.0f} s behind"
    fix = "set the clocks (NTP): look-ups by time, delays and retention go by them"
    return Finding("clock", WARN, f"{process.name} is {way} this machine", fix)


def disk(process: Process) -> Finding:
    """Compare the use of the broker's disk with its diskMaxUsedSpaceRatio and diskSpaceWarningLevelRatio."""
    try:
        used = float((process.figures or {})["commitLogDiskRatio"])
    except (KeyError, ValueError):
        return Finding("disk", OK, f"{process.name}: not told")
    text, fix = f"{process.name}: {used:.0%} in use", "give it a larger disk, or shorten fileReservedTime"
    if used > _DISK_FAIL:
        return Finding("disk", FAIL, f"{text}: the broker refuses messages (diskSpaceWarningLevelRatio)", fix)
    if used > _DISK_WARN:
        return Finding("disk", WARN, f"{text}: old messages go at any hour (diskMaxUsedSpaceRatio)", fix)
    return Finding("disk", OK, text)


def load(process: Process) -> Finding:
    """Check that requests do not wait so long that the broker refuses them (code 2)."""
    figures = process.figures or {}
    names = "sendThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills"
    waits = {name: int(figures[name]) for name in names if figures.get(name, "").isdecimal()}
    longest = max(waits, key=lambda name: waits[name], default="")
    if longest and waits[longest] > _BUSY_MS:
        text = f"{process.name}: {longest}={waits[longest]}: it answers sends with code 2 (flow control)"
        return Finding("flow control", WARN, text, "look at its disk and its garbage collection; send less at once")
    return Finding("flow control", OK, f"{process.name}: no sends wait")


def settings(process: Process) -> Iterator[Finding]:
    """Check the settings that decide what clients can do."""
    own, name = process.settings or {}, process.name

    def change(setting: str, value: str) -> str:
        return f"rmq -n ... updateBrokerConfig -b {process.address} -k {setting} -v {value}, and in its broker.conf"

    is_slave = process.broker_id > 0
    if is_slave and process.is_5x and own.get("slaveReadEnable") == "false":
        text = f"{name}: slaveReadEnable=false: it answers reads with code 2 while its master is away"
        yield Finding("settings", WARN, text, change("slaveReadEnable", "true"))
    if own.get("brokerRole") == "SYNC_MASTER" and process.is_5x and own.get("inSyncReplicas") == "1":
        text = f"{name}: SYNC_MASTER with inSyncReplicas=1: it answers sends without waiting for a slave"
        yield Finding("settings", WARN, text, "inSyncReplicas=2 and totalReplicas=2 in its broker.conf, then a restart")
    if not is_slave and own.get("autoCreateTopicEnable") == "true":
        text = f"{name}: autoCreateTopicEnable=true: a misspelled topic is made by its first message"
        fix = _MADE_WITH if process.is_served_store else change("autoCreateTopicEnable", "false")
        yield Finding("settings", WARN, text, fix)
    if own.get("enablePropertyFilter") == "false":
        yield Finding("settings", OK, f"{name}: enablePropertyFilter=false: SQL92 is evaluated by the reader")
    if not is_slave and process.is_5x and own.get("timerWheelEnable") == "false":
        text = f"{name}: timerWheelEnable=false: messages with a deliver time are refused"
        yield Finding("settings", WARN, text, "timerWheelEnable=true in its broker.conf, then restart it")
