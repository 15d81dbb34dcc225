"""The id by which all parts of the kit recognise a message (the document's messageId).

It is the property OUTBOX_ID, which the sender's kit sets, and which retry, redrive, resend and mirrors keep. For a
message that was sent without the kit it is the UNIQ_KEY of its producer. It is never the offset id, which changes with
each copy, and never the result of Java's getMsgId(), which all messages of a batch share.

A program that makes a message of another one may copy the OUTBOX_ID with all other properties. The kit gives a message
one id as OUTBOX_ID and UNIQ_KEY, so a copied OUTBOX_ID beside another UNIQ_KEY is not the message's own: its UNIQ_KEY
is. One case is different: a mirror that has brought a message back from Kafka has set the UNIQ_KEY of its copy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rmq_store.errors import NoMessageIdError, UsageError
from rmq_store.format.properties import property_string as names
from rmq_store.format.properties.mirror_properties import MIRROR_PATH, MIRROR_TO, is_brought_back
from rmq_store.format.properties.new_message import OUTBOX_ID
from rmq_store.reliable.database.tables import MESSAGE_ID_CHARACTERS_MAX

UNIQUE_KEY: Final = names.UNIQUE_KEY

ID_PROPERTIES: Final = (OUTBOX_ID, UNIQUE_KEY, MIRROR_TO, MIRROR_PATH)

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
    """The id of a received message: its OUTBOX_ID, unless that was copied from another message, else its UNIQ_KEY.
    `what` names the message in an error. Of the properties those of `ID_PROPERTIES` are looked at.

    Raises:
        NoMessageIdError: it has no id of its own, or one that no table can hold.
    """
    for name in (UNIQUE_KEY,) if copied_id_of(properties) else (OUTBOX_ID, UNIQUE_KEY):
        message_id = properties.get(name)
        if message_id:
            if not _ID.fullmatch(message_id):
                raise NoMessageIdError(f"{what}: its property {name} is no usable id: {message_id[:300]!r}")
            return message_id
    raise NoMessageIdError(
        f"{what} has neither {OUTBOX_ID} nor {UNIQUE_KEY}: a duplicate of it cannot be recognised. Let its producer "
        "give it an id, or consume it without idempotency"
    )


def copied_id_of(properties: Mapping[str, str]) -> str | None:
    """The OUTBOX_ID of a message that was made of another one, whose id it is. None: it has none, or its own."""
    outbox_id, unique_key = properties.get(OUTBOX_ID), properties.get(UNIQUE_KEY)
    if not outbox_id or not unique_key or outbox_id == unique_key or is_brought_back(properties):
        return None
    return outbox_id
