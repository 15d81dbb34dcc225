"""Times as people type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from rmq_store.errors import UsageError

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)", re.ASCII)
_MILLISECONDS = re.compile(r"[0-9]{11,15}", re.ASCII)

# mqadmin's yyyy-MM-dd#HH:mm:ss:SSS (UtilAll#YYYY_MM_DD_HH_MM_SS_SSS).
_MQADMIN = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})#([0-9]{2}:[0-9]{2}:[0-9]{2}):([0-9]{3})", re.ASCII)

TIMES = "milliseconds since 1970, 2026-11-21T00:21:55Z (UTC if it has no zone), or a duration: 30s, 10m, 2h, 1d"
DURATIONS = "500ms, 30s, 10m, 2h or 1d"


def parse_duration(text: str) -> int:
    """Milliseconds. Raises UsageError, for a moment as well: `parse_time` reads those."""
    if (duration := _DURATION.fullmatch(text.strip())) is None:
        raise UsageError(f"{text!r} is no duration, such as {DURATIONS}")
    return int(duration[1]) * _UNITS_MS[duration[2]]


def parse_time(text: str, now_ms: int, *, ahead: bool = False) -> int:
    """Milliseconds since the epoch. A duration counts back from now; with `ahead`, forward. Raises UsageError."""
    text = text.strip()
    if text == "now":
        return now_ms
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    if _DURATION.fullmatch(text):
        length_ms = parse_duration(text)
        return now_ms + length_ms if ahead else max(now_ms - length_ms, 0)
    if (written := _MQADMIN.fullmatch(text)) is not None:
        text = f"{written[1]}T{written[2]}.{written[3]}"
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        time_ms = round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        time_ms = -1
    if time_ms < 0:
        raise UsageError(f"{text!r} is no time: {TIMES}")
    return time_ms
