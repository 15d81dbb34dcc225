"""The checks of `rmq doctor`. A check never raises for a problem that it looks for: it returns a finding."""

from __future__ import annotations

from typing import NamedTuple

OK, WARN, FAIL = "OK", "WARN", "FAIL"


class Finding(NamedTuple):
    """The result of one check; `fix` says what to do, "" if all is well."""

    check: str
    status: str
    text: str
    fix: str = ""
