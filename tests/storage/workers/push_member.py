"""A member of a group in a process of its own: `<store> <group> <client id> <log> <stop file> <mode>`.

It consumes until the stop file exists. Each outcome is one line in the log, written when the listener is about to
return: `<H or F> <pid> <number> <topic of the record> <queue id> <queue offset> <reconsume times>`.

    share     numbers divisible by 10 fail once, those divisible by 50 always
    stuck     the first message of the queue never ends
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rmq_store.client.backend.local import LocalBackend
from rmq_store.client.consume_service.listener import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    MessageListenerConcurrently,
)
from rmq_store.client.consumer.push_consumer import PushConsumer
from rmq_store.client.group.consumer_config import ConsumeFromWhere, PushConsumerConfig
from rmq_store.protocol.messages import MessageExt

TOPIC = "Orders"


def main(store: str, group: str, client_id: str, log: str, stop: str, mode: str) -> None:
    log_fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def consume(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        (message,) = messages
        number, times = int(message.body), message.reconsume_times
        if mode == "stuck" and number == 2101:
            time.sleep(3600)
        is_bad = mode == "share" and (number % 50 == 0 or (number % 10 == 0 and times == 0))
        place = context.message_queue
        words = ("F" if is_bad else "H", os.getpid(), number, place.topic, place.queue_id, message.queue_offset, times)
        os.write(log_fd, f"{' '.join(map(str, words))}\n".encode())
        return ConsumeConcurrentlyStatus.RECONSUME_LATER if is_bad else ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    config = PushConsumerConfig(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        consume_thread_nums=4,
        max_reconsume_times=2,
        poll_interval_millis=5,
        pull_batch_size=16,
    )
    with LocalBackend(store) as backend, PushConsumer(group, backend, config, client_id=client_id) as consumer:
        consumer.subscribe(TOPIC)
        consumer.register_message_listener(MessageListenerConcurrently(consume))
        consumer.start()
        while not Path(stop).exists() and consumer.failure is None:
            time.sleep(0.005)


main(*sys.argv[1:])
