"""The checks of `rmq doctor`. A check never raises for what it is there to find: it is a finding."""

from __future__ import annotations

from typing import NamedTuple

OK, WARN, FAIL = "OK", "WARN", "FAIL"


class Finding(NamedTuple):
    """One check's answer; `fix` says what to do, "" if it is well."""

    check: str
    status: str
    text: str
    fix: str = ""
