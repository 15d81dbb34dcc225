"""Calls to clients that wait for an answer, and keep no thread while they do (Broker2Client.java)."""

from __future__ import annotations

from typing import Final

from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.requests.request import Peer
from rmq_store.server.transport.client_calls import OnAnswer
from rmq_store.server.transport.connection import Connection

CALL_TIMEOUT_MS: Final = 10_000


def call_peer(peer: Peer, command: RemotingCommand, on_answer: OnAnswer) -> None:
    """Send a request to a client; `on_answer` gets None if none comes within CALL_TIMEOUT_MS.

    Raises:
        RemotingCommandError: the request fits no frame.
    """
    if isinstance(peer, Connection):
        peer.call(command, on_answer, CALL_TIMEOUT_MS)
    else:
        on_answer(None)
