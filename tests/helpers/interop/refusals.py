"""The code by which the server refused a request of a client."""

from __future__ import annotations

import re
from typing import Final

from helpers.interop.matrix import Cell
from helpers.interop.program import Program, RefusedError
from rmq_store.protocol.errors import ResponseCode
from rmq_store.server.grpc_definitions.enums import Code

NAMES: Final = {
    **{number: name for name, number in vars(ResponseCode).items() if isinstance(number, int)},
    **{code.value: code.name for code in Code},
}
"""The codes of servers. Java's client has codes of its own, from 10001 on, which are not among them."""

_LOGGED: Final = (
    r"CODE: (\d+)  DESC: {remark}",  # Java, Go
    r"{remark}[^\n]*?, ?(?:error code:)?(\d+)\[",  # C++
    r"exception, (\d+), {remark}",  # Python
)


def answered(error: RefusedError, client: Program, remark: str) -> int:
    """The code as the client tells it, or else as its log has it beside the server's `remark`."""
    if error.code in NAMES:
        return int(error.code)
    text = client.logged()
    for pattern in _LOGGED:
        if found := re.search(pattern.format(remark=re.escape(remark)), text):
            return int(found.group(1))
    raise AssertionError(f"neither the client nor its log tells a code: {error}")


def refused(code: int) -> Cell:
    """The cell of a feature that the server refuses."""
    return Cell("refused", f"{code} {NAMES[code]}")
