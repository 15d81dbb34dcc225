"""Opens clients for a connection. kafka-python is imported with the first one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rmq_store.bridge.kafka.client import KafkaAdministration, KafkaReader, KafkaWriters
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.errors import UsageError


def open_reader(connection: KafkaConnection) -> KafkaReader:
    """A reader, to be closed. Raises as `KafkaPythonReader`, and UsageError if the extra `[kafka]` is missing."""
    with extra_needed():
        from rmq_store.bridge.kafka.reader import KafkaPythonReader
    return KafkaPythonReader(connection)


def open_administration(connection: KafkaConnection) -> KafkaAdministration:
    """An administration client; the caller closes it. Raises as `open_reader`."""
    with extra_needed():
        from rmq_store.bridge.kafka.administration import KafkaPythonAdministration
    return KafkaPythonAdministration(connection)


def open_writers(
    connection: KafkaConnection,
    administration: KafkaAdministration,
    *,
    compression: str = "none",
    is_stopping: Callable[[], bool] = lambda: False,
) -> KafkaWriters:
    """Writers of transactions; the caller closes them. They read settings of topics from `administration`. Once
    `is_stopping()`, they do not wait for brokers any more. Raises as `open_reader`.
    """
    with extra_needed():
        from rmq_store.bridge.kafka.writer import KafkaPythonWriters
    return KafkaPythonWriters(
        connection.settings(), administration.topic_settings, compression=compression, is_stopping=is_stopping
    )


@contextlib.contextmanager
def connected(connection: KafkaConnection) -> Iterator[tuple[KafkaAdministration, KafkaReader]]:
    """An administration client and a reader, closed after the block. Raises as `open_reader`."""
    with contextlib.ExitStack() as opened:
        administration = opened.enter_context(contextlib.closing(open_administration(connection)))
        yield administration, opened.enter_context(contextlib.closing(open_reader(connection)))


@contextlib.contextmanager
def extra_needed() -> Iterator[None]:
    """Around an import of kafka-python: if it is missing, raise a UsageError that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "kafka":
            raise
        raise UsageError("the Kafka bridge needs kafka-python: pip install '.[kafka]' in a clone") from error
