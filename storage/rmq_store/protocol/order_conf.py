"""The queues of an ordered topic: the name server's value of ORDER_TOPIC_CONFIG."""

from __future__ import annotations

from rmq_store.errors import UsageError
from rmq_store.protocol.messages import MessageQueue


def queues_of_order_conf(topic: str, order_topic_conf: str) -> list[MessageQueue]:
    """The queues of "broker:n;broker:n", in this order (MQClientInstance#topicRouteData2TopicPublishInfo).

    Raises:
        UsageError: the text does not have this form.
    """
    queues: list[MessageQueue] = []
    for part in order_topic_conf.split(";"):
        name, colon, count = part.rpartition(":")
        if not (name and colon and count.isascii() and count.isdigit() and len(count) <= 5):
            raise UsageError(f"order configuration {order_topic_conf!r} of topic {topic!r}: not broker:n;broker:n")
        queues += [MessageQueue(topic, name, queue_id) for queue_id in range(int(count))]
    return queues
