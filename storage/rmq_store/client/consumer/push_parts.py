"""The parts of a push consumer. The kind of its listener decides their classes.

    MessageListenerConcurrently   objects, any order          ProcessQueue          ConsumeMessagesService
    MessageListenerArrow          batches, any order          ProcessQueue          ConsumeArrowService
    MessageListenerOrderly        objects, one after another  OrderedProcessQueue   ConsumeOrderlyService, queues locked

Source: DefaultMQPushConsumerImpl.java (start).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rmq_store.broker.filter.subscription import Subscription
from rmq_store.client.backend.backend import Backend
from rmq_store.client.consume_service.consume_arrow import ConsumeArrowService
from rmq_store.client.consume_service.consume_messages import ConsumeMessagesService
from rmq_store.client.consume_service.consume_orderly import ConsumeOrderlyService
from rmq_store.client.consume_service.executor import Executor
from rmq_store.client.consume_service.listener import MessageListener, MessageListenerArrow, MessageListenerOrderly
from rmq_store.client.consume_service.ordered_process_queue import OrderedProcessQueue
from rmq_store.client.consume_service.process_queue import ProcessQueue
from rmq_store.client.consumer.pull_service import Fetch, PullService, pull_batches, pull_messages, pull_rows
from rmq_store.client.group.consumer_config import MessageModel, PushConsumerConfig
from rmq_store.client.group.held_queue import HeldQueue
from rmq_store.client.group.membership import Membership
from rmq_store.client.group.offset_store import OffsetStore, open_offset_store
from rmq_store.client.group.rebalance import Rebalance

LOCK_FIRST_MS, LOCK_MS = 1000, 20_000


class PushParts(NamedTuple):
    """The parts of a push consumer, besides its threads."""

    offsets: OffsetStore
    rebalance: Rebalance[Any]
    membership: Membership
    pulls: PullService[Any, Any]


def make_parts(
    listener: MessageListener,
    backend: Backend,
    group: str,
    client_id: str,
    config: PushConsumerConfig,
    executor: Executor,
    subscriptions: Callable[[], Mapping[str, Subscription]],
) -> PushParts:
    """Make parts that are connected to each other. Nothing runs yet, and no broker is called."""
    ordered = isinstance(listener, MessageListenerOrderly)
    make_queue: type[HeldQueue] = ProcessQueue
    fetch: Fetch[Any] = pull_rows
    if ordered:
        make_queue, fetch = OrderedProcessQueue, pull_messages
    elif isinstance(listener, MessageListenerArrow):
        fetch = pull_batches
    offsets = open_offset_store(backend, group, client_id, config, lock_owner=client_id if ordered else None)
    rebalance: Rebalance[Any] = Rebalance(backend, group, client_id, config, offsets, make_queue, ordered=ordered)
    shares = config.message_model is MessageModel.CLUSTERING
    membership = Membership(backend, group, client_id, rebalance, subscriptions, shares=shares)
    service: ConsumeMessagesService | ConsumeArrowService | ConsumeOrderlyService
    if isinstance(listener, MessageListenerOrderly):
        service = ConsumeOrderlyService(listener, group, config, executor, backend, offsets, rebalance.lock)
        membership.every(LOCK_MS, rebalance.lock_all, first_ms=LOCK_FIRST_MS)
    else:
        concurrent: ConsumeMessagesService | ConsumeArrowService
        if isinstance(listener, MessageListenerArrow):
            concurrent = ConsumeArrowService(listener, group, config, executor, backend, offsets)
        else:
            concurrent = ConsumeMessagesService(listener, group, config, executor, backend, offsets)
        service = concurrent
        membership.every(config.consume_timeout_ms, lambda: concurrent.clean_expired(rebalance.assignments()))
    pulls: PullService[Any, Any] = PullService(
        backend, group, config, rebalance, offsets, fetch, service, ordered=ordered, on_removed=membership.hurry
    )
    return PushParts(offsets, rebalance, membership, pulls)
