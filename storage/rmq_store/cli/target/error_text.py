"""Errors of brokers as people read them. RocketMQ's own tools print codes, and so do the commands of mqadmin."""

from __future__ import annotations

import re
from typing import Final

from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.request_codes import without_requests

# As ResponseError and MQBrokerError write them; their texts are also parts of other errors.
_ANSWER: Final = re.compile(r"\bCODE: (?P<code>-?[0-9]+) +DESC: ?(?P<nothing>(?= BROKER: |\s*$)|null\b)?")
_BROKER: Final = re.compile(r" BROKER: (?=\S)")
_NAMES: Final = {value: name for name, value in vars(ResponseCode).items() if name.isupper()}


def without_codes(text: str) -> str:
    """The text of an error without codes of requests and answers. A broker's own words stay, and its name; the name of
    the code stands for an answer without words.
    """
    return _BROKER.sub(", says ", _ANSWER.sub(_words, without_requests(text)))


def _words(found: re.Match[str]) -> str:
    if found["nothing"] is None:
        return ""
    code = int(found["code"])
    return _NAMES.get(code, f"an answer of kind {code} without a reason")
