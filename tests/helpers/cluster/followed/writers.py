"""Clients that write to a master all the time, whatever happens to it: Java's own, and ours."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Self

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.witness import Witness
from rmq_store.client import Message, Producer, ProducerConfig
from rmq_store.protocol.errors import ClientError

PAUSE_S: Final = 0.05
TIMEOUT_S: Final = 5.0


class Writers:
    """Single messages, batches, compressed and delayed ones, and halves, with keys; and a group that has committed all
    of them. `java`: Java's client sends, too. A context manager.
    """

    def __init__(self, cluster: RocketmqCluster, topic: str, group: str, *, java: bool) -> None:
        self._cluster = cluster
        self._topic = topic
        self._group = group
        self._witness = Witness(cluster) if java else None
        self._is_over = threading.Event()
        self._may_write = threading.Event()
        self._stands = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0
        """How many rounds were acknowledged."""
        self.failed = 0
        self.by_java = 0

    def pause(self) -> None:
        """Return as soon as nobody writes."""
        self._may_write.clear()
        self._stands.wait()
        if self._witness is not None:
            self.by_java += len(self._witness.ask("end")["acknowledged"])

    def go_on(self) -> None:
        """End of `pause`."""
        if self._witness is not None:
            self._witness.ask("begin", topic=self._topic, everyMs=20)
        self._stands.clear()
        self._may_write.set()

    def __enter__(self) -> Self:
        self._stands.set()
        self._thread.start()
        self.go_on()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._may_write.set()
        self._thread.join()
        if self._witness is not None:
            self._witness.close()

    def _run(self) -> None:
        config = ProducerConfig(compress_msg_body_over_howmuch=1000, send_msg_timeout=int(TIMEOUT_S * 1000))
        with Producer("p", f"rmq://{self._cluster.name_server}", config) as producer:
            while not self._is_over.is_set():
                try:
                    with self._cluster.connect(timeout_s=TIMEOUT_S) as broker:
                        self._write(producer, broker)
                except (OSError, ClientError):
                    self.failed += 1
                    time.sleep(PAUSE_S)

    def _write(self, producer: Producer, broker: Connection) -> None:
        while not self._is_over.is_set():
            if not self._may_write.is_set():
                self._stands.set()
                self._may_write.wait()
                continue
            self._round(producer, broker, self.sent)
            self.sent += 1
            time.sleep(PAUSE_S)

    def _round(self, producer: Producer, broker: Connection, number: int) -> None:
        topic, queue_id = self._topic, number % 4
        producer.send(Message(topic, b"%d " % number * 1000, tags=f"T{number % 3}", keys=f"k{number}"))
        properties = {"KEYS": f"b{number}", "TAGS": "T1"}
        requests.send_batch(broker, topic, [b"%d" % each * 200 for each in range(20)], queue_id, properties=properties)
        requests.send(broker, topic, queue_id, b"plain" * 30)
        if number % 5 == 0:
            requests.send(broker, topic, body=b"later", properties={"DELAY": "1"})
            half = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": f"{number:032d}"}
            requests.send(broker, topic, body=b"half", properties=half, sys_flag=4)
        requests.commit(broker, self._group, topic, requests.max_offset(broker, topic, queue_id), queue_id)
