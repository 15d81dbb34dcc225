"""Translates kafka-python's errors into the bridge's, which separate faults of the caller from errors worth a retry."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Iterator
from typing import Any, Final

from kafka import errors

from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.errors import KafkaOffsetError, KafkaRefusedError, KafkaUnavailableError, MirrorSourceError, UsageError

_UNAVAILABLE: Final = (
    errors.RetriableError, errors.KafkaConnectionError, errors.BrokerNotAvailableError,
    errors.UnstableOffsetCommitError,
)  # fmt: skip
_NOT_LET_IN: Final = (
    errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError, errors.IllegalSaslStateError,
)  # fmt: skip
_CLOSED_WHILE_AUTHENTICATING: Final = (
    ". Brokers close a connection if they refuse the user, the password or the mechanism: check the sasl_ options"
)
VERSION_NEEDED: Final = "Kafka 2.7 or later is needed."
"""The first one with InitProducerId 4, by which a writer of transactions can be told from its predecessor."""

_MANAGER_LOG: Final = logging.getLogger("kafka.net.manager")
_MISTAKES: Final = (
    errors.KafkaConfigurationError, errors.IllegalArgumentError, errors.InvalidTopicError,
    errors.InvalidPartitionsError, errors.InvalidReplicationFactorError, errors.InvalidConfigurationError,
    errors.UnsupportedCodecError,
)  # fmt: skip


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Translate errors of a client inside the block into the bridge's; `what` names the work.

    Raises:
        KafkaUnavailableError: brokers do not answer in time, or say "later".
        KafkaOffsetError: an offset is out of range.
        MirrorSourceError: a partition is shorter than it was.
        KafkaRefusedError: brokers refuse.
        UsageError: an invalid setting or name.
    """
    try:
        yield
    except errors.OffsetOutOfRangeError as error:
        offsets = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
        places = {(str(at.topic), int(at.partition)): int(offset) for at, offset in offsets.items()}
        named = ", ".join(f"{topic}/{partition} offset {offset}" for (topic, partition), offset in places.items())
        raise KafkaOffsetError(f"Kafka has no such offset: {named}", places) from error
    except errors.LogTruncationError as error:
        shorter = [(str(place.topic), int(place.partition)) for place in error.divergent_offsets]
        raise MirrorSourceError(_truncated(error), shorter) from error
    except _MISTAKES as error:
        raise UsageError(f"Kafka, {what}: {told(error)}") from error
    except _UNAVAILABLE as error:
        raise KafkaUnavailableError(f"Kafka, {what}: {told(error)}") from error
    except errors.TopicAuthorizationFailedError as error:
        topics = error.args[0] if error.args and isinstance(error.args[0], set) else ()
        raise KafkaRefusedError(f"Kafka, {what}: {told(error)}", map(str, topics)) from error
    except errors.UnsupportedVersionError as error:
        raise KafkaRefusedError(f"Kafka, {what}: {told(error)} {VERSION_NEEDED}") from error
    except errors.KafkaError as error:
        raise KafkaRefusedError(f"Kafka, {what}: {told(error)}") from error
    except ssl.SSLError as error:
        raise UsageError(f"Kafka, {what}: TLS: {error}") from error
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        # A file of certificates; kafka-python opens it.
        raise UsageError(f"Kafka, {what}: {error.filename or 'a file of TLS'}: {error.strerror}") from error
    except OSError as error:
        raise KafkaUnavailableError(f"Kafka, {what}: {error}") from error


@contextlib.contextmanager
def connecting(connection: KafkaConnection) -> Iterator[None]:
    """Around the first connection of a client. kafka-python retries until its time is over, also with a password that
    brokers refuse, and writes the reason only to its log. Here the error has the reason.

    A broker that refuses a password answers, and closes the connection. kafka-python drops an answer that it reads
    together with the close, so the error can only name the likely reason.

    Raises:
        KafkaRefusedError: a broker refused the user, the password or the mechanism. Others as `translated`.
    """
    what = f"connecting to {', '.join(connection.bootstrap_servers)}"
    attempts = _Attempts()
    _MANAGER_LOG.addHandler(attempts)
    try:
        with translated(what):
            yield
    except KafkaUnavailableError as error:
        if attempts.refusal is not None:
            raise KafkaRefusedError(f"Kafka, {what}: {told(attempts.refusal)}") from error
        if attempts.last is not None:
            likely = _CLOSED_WHILE_AUTHENTICATING if connection.authenticates and attempts.was_closed else ""
            raise KafkaUnavailableError(f"{error}: {told(attempts.last)}{likely}") from error
        raise
    finally:
        _MANAGER_LOG.removeHandler(attempts)


class _Attempts(logging.Handler):
    """The errors of a client's attempts to connect, as its log has them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.refusal: BaseException | None = None
        self.last: BaseException | None = None

    @property
    def was_closed(self) -> bool:
        """The last attempt had a connection, and the broker closed it."""
        return "socket disconnected" in str(self.last)

    def emit(self, record: logging.LogRecord) -> None:
        for found in record.args if isinstance(record.args, tuple) else ():
            if isinstance(found, _NOT_LET_IN):
                self.refusal = found
            # In the end the log has the timeout itself, which is the error already.
            elif isinstance(found, BaseException) and not isinstance(found, errors.KafkaTimeoutError):
                self.last = found


@contextlib.contextmanager
def closed_unless_made(client: Any) -> Iterator[None]:
    """Around the constructor of a client of kafka-python, which starts a thread before it connects. If it fails, close
    the client, because the caller does not get it.
    """
    try:
        yield
    except BaseException:
        if (connections := getattr(client, "_client", None)) is not None:
            connections.close()
        raise


def told(error: BaseException) -> str:
    """The text of a client's error, in one short line."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:297]}..."


def _truncated(error: errors.LogTruncationError) -> str:
    parts = []
    for place, end in error.divergent_offsets.items():
        where = "" if end is None else f": what it holds differs from offset {end.offset} on"
        parts.append(f"{place.topic}/{place.partition}{where}")
    return (
        f"Kafka has lost records that were read before (an unclean leader election?): {', '.join(parts)}. The mirror "
        "does not begin again by itself"
    )
