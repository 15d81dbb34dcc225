"""The id by which all parts of the kit recognise a message (the document's messageId).

It is the property OUTBOX_ID, which the sender's kit sets, and which retry, redrive, resend, mirrors and sinks keep. For
a message that was sent without the kit it is the UNIQ_KEY of its producer. It is never the offset id, which changes
with each copy, and never the result of Java's getMsgId(), which all messages of a batch share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rmq_store.errors import NoMessageIdError, UsageError
from rmq_store.reliable.database.tables import MESSAGE_ID_CHARACTERS_MAX

OUTBOX_ID: Final = "OUTBOX_ID"
UNIQUE_KEY: Final = "UNIQ_KEY"

_ID = re.compile(rf"[^\s\x00-\x1f\x7f]{{1,{MESSAGE_ID_CHARACTERS_MAX}}}")


def check_message_id(message_id: object) -> str:
    """Return a usable id: 1 to 255 characters without spaces, which every database compares in the same way.

    Raises:
        UsageError: the id is invalid.
    """
    if not isinstance(message_id, str) or not _ID.fullmatch(message_id):
        raise UsageError(
            f"message id {message_id!r}: 1 to {MESSAGE_ID_CHARACTERS_MAX} characters without spaces are expected"
        )
    return message_id


def message_id_of(properties: Mapping[str, str], what: str) -> str:
    """The id of a received message. `what` names the message in an error.

    Raises:
        NoMessageIdError: it has no id of its own, or one that no table can hold.
    """
    for name in (OUTBOX_ID, UNIQUE_KEY):
        message_id = properties.get(name)
        if message_id:
            if not _ID.fullmatch(message_id):
                raise NoMessageIdError(f"{what}: its property {name} is no usable id: {message_id[:300]!r}")
            return message_id
    raise NoMessageIdError(
        f"{what} has neither {OUTBOX_ID} nor {UNIQUE_KEY}: a duplicate of it cannot be recognised. Let its producer "
        "give it an id, or consume it without idempotency"
    )
