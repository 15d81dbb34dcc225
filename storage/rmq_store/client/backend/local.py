"""A cluster of store directories in this process: each directory is a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

from rmq_store import kinds
from rmq_store.arguments import checked_methods
from rmq_store.broker.metadata.topics import TopicConfig
from rmq_store.broker.processor.local_broker import LocalBroker
from rmq_store.broker.rules.routing import AUTO_CREATE_QUEUE_MAX
from rmq_store.broker.store.store import Store
from rmq_store.client.backend.backend import Backend
from rmq_store.client.backend.local_transactions import LocalTransactions
from rmq_store.client.backend.transactions import OnCheck, Transactions
from rmq_store.errors import TopicKindError, UsageError
from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX
from rmq_store.protocol.errors import MQClientError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.order_conf import queues_of_order_conf
from rmq_store.remoting.transport.settings import SCHEME

StorePlace = str | Path | Store
StorePlaces = StorePlace | Sequence[StorePlace] | Mapping[str, StorePlace]


@checked_methods(constructor=True)
class LocalBackend:
    """One store, several, or {broker name: store}, each a path or an open Store. Safe for threads, not across fork.

    Without names, the stores' own broker names are used. Stores given by path are opened, and closed by `close`.
    `clock` overrides the stores' clock. `strict_last_offset`: see LocalBroker. `order_topic_conf` {topic:
    "broker:n;broker:n"} names exactly the queues to which producers of a topic send (name server's ORDER_TOPIC_CONFIG).

    Raises:
        UsageError: no store, or two with the same broker name; and what `Store.open` raises.
    """

    def __init__(
        self,
        stores: StorePlaces,
        *,
        clock: Callable[[], int] | None = None,
        strict_last_offset: bool = False,
        order_topic_conf: Mapping[str, str] | None = None,
    ) -> None:
        self._order_topic_conf = dict(order_topic_conf or {})
        self._opened: list[Store] = []
        # By topic: the settings of which its queues were made.
        self._published: dict[str, tuple[dict[str, TopicConfig], list[MessageQueue]]] = {}
        brokers: dict[str, LocalBroker] = {}
        try:
            for name, place in _named(stores):
                store = place if isinstance(place, Store) else self._open(place, name, clock)
                broker_name = name or store.broker_name
                if broker_name in brokers:
                    raise UsageError(
                        f"{brokers[broker_name].store.path} and {store.path} are both called {broker_name!r}: "
                        "give names, as {'broker-a': path, 'broker-b': path}"
                    )
                brokers[broker_name] = LocalBroker(broker_name, store, strict_last_offset=strict_last_offset)
            if not brokers:
                raise UsageError("a cluster needs at least one store")
        except BaseException:
            self.close()
            raise
        self._brokers: Mapping[str, LocalBroker] = MappingProxyType(dict(sorted(brokers.items())))
        self._transactions = LocalTransactions(self._brokers)
        for broker in self._brokers.values():
            broker.takes_half_messages = self._transactions.is_there
        self.clock: Callable[[], int] = clock or next(iter(self._brokers.values())).store.clock

    def close(self) -> None:
        """Leave all groups, and close the stores that were given by path. Does nothing the second time."""
        if hasattr(self, "_transactions"):
            self._transactions.close()
        for broker in getattr(self, "_brokers", {}).values():
            broker.close()
        while self._opened:
            try:
                self._opened[-1].close()
            except Exception:
                self._opened.pop()
                raise
            self._opened.pop()  # behind it: what an interrupt (Ctrl-C) leaves open is closed by the next call

    def __enter__(self) -> LocalBackend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def brokers(self) -> Mapping[str, LocalBroker]:
        """As `Backend.brokers`."""
        return self._brokers

    def publish_queues(self, topic: str, default_topic_queue_nums: int = 4) -> list[MessageQueue]:
        """As `Backend.publish_queues`. Retry and dead-letter topics are never created here."""
        if topic in self._order_topic_conf:
            return queues_of_order_conf(topic, self._order_topic_conf[topic])
        known = self._configs(lambda store: store.topics().get(topic), topic)
        if not known and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            count = min(default_topic_queue_nums, AUTO_CREATE_QUEUE_MAX)
            for name, broker in self._brokers.items():
                if broker.store.config.auto_create_topic_enable:
                    there = broker.store.find_topic(topic)  # in another process's table by now, or in none
                    queues = max(count, there.read_queue_nums) if there is not None else count
                    known[name] = broker.store.create_topic(topic, queues, exist_ok=True)
        # Asked for with every message. A table gives the same objects until somebody changes it.
        published = self._published.get(topic)
        if published is None or not _are_same(published[0], known):
            _refuse_kinds(topic, known, kinds.refuse_to_write_topic)
            counts = ((name, config.write_queue_nums) for name, config in known.items() if config.writable)
            published = self._published[topic] = known, _queues(topic, counts)
        return [*published[1]]

    def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        """As `Backend.subscribe_queues`."""
        known = self._configs(lambda store: store.find_topic(topic), topic)
        _refuse_kinds(topic, known, kinds.refuse_to_read_topic)
        return _queues(topic, ((name, config.read_queue_nums) for name, config in known.items() if config.readable))

    def transactions(self, group: str, client_id: str, on_check: OnCheck) -> Transactions:
        """As `Backend.transactions`. A thread of this backend asks for transactions of its stores."""
        return self._transactions.open(group, on_check)

    def _configs(self, find: Callable[[Store], TopicConfig | None], topic: str) -> dict[str, TopicConfig]:
        try:
            found = [(name, find(broker.store)) for name, broker in self._brokers.items()]
        except OSError as error:
            raise MQClientError(f"the queues of topic {topic!r} cannot be looked up: {error}") from error
        return {name: config for name, config in found if config is not None}

    def _open(self, path: str | Path, name: str | None, clock: Callable[[], int] | None) -> Store:
        store = Store.open(path, clock=clock, broker_name=name)
        self._opened.append(store)
        return store


def _are_same(known: Mapping[str, TopicConfig], now: Mapping[str, TopicConfig]) -> bool:
    # By identity: equal settings may be of different kinds.
    return known.keys() == now.keys() and all(known[name] is config for name, config in now.items())


def _refuse_kinds(
    topic: str, known: Mapping[str, TopicConfig], refuse: Callable[[str, kinds.Kind | None], None]
) -> None:
    """Raise MQClientError if a store keeps the topic in a way that is not read, or not written, here."""
    for config in known.values():
        try:
            refuse(topic, config.kind)
        except TopicKindError as error:
            raise MQClientError(str(error)) from error


def backend_of(given: Backend | StorePlaces) -> tuple[Backend, Callable[[], None]]:
    """The given cluster, or one made of the given stores or of the brokers behind name servers
    (`rmq://ns1:9876;ns2:9876`); and a function that closes what was made. Raises UsageError for anything else.
    """
    if isinstance(given, str) and given.startswith(SCHEME):
        from rmq_store.client.backend.remote import RemoteBackend  # sockets are needed by few

        remote = RemoteBackend(given)
        return remote, remote.close
    if isinstance(given, str | Path | Store | Mapping | Sequence):
        made = LocalBackend(given)
        return made, made.close
    if not callable(getattr(given, "brokers", None)):
        raise UsageError(
            f"backend: a path, an open Store, several of them or a cluster is expected, got {type(given).__name__}"
        )
    return given, lambda: None


def _named(stores: StorePlaces) -> list[tuple[str | None, StorePlace]]:
    if isinstance(stores, Mapping):
        return list(stores.items())
    return [(None, place) for place in ([stores] if isinstance(stores, str | Path | Store) else stores)]


def _queues(topic: str, counts: Iterable[tuple[str, int]]) -> list[MessageQueue]:
    return [MessageQueue(topic, name, queue_id) for name, count in sorted(counts) for queue_id in range(count)]
