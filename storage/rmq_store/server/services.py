"""The processor of each request of a broker, and the pool in which it waits (BrokerController#registerProcessor)."""

from __future__ import annotations

from functools import partial
from typing import Final

from rmq_store.format.text.host import Host
from rmq_store.late.dataclasses import dataclass
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.server.access.request_check import ALWAYS_REFUSED, refuse_always
from rmq_store.server.admin.changes import Changes
from rmq_store.server.admin.cleaning import Cleaning
from rmq_store.server.admin.group_progress import GroupProgress
from rmq_store.server.admin.member_offsets import MemberOffsets
from rmq_store.server.admin.member_questions import MemberQuestions
from rmq_store.server.admin.queue_entries import QueueEntries
from rmq_store.server.admin.rates import Rates
from rmq_store.server.admin.resets import Resets
from rmq_store.server.admin.settings import Settings
from rmq_store.server.name_server.kv_configs import KVConfigs
from rmq_store.server.name_server.route_processor import RouteProcessor
from rmq_store.server.name_server.route_table import RouteTable
from rmq_store.server.name_server.settings import NameServerSettings
from rmq_store.server.pop.assignments import Assignments
from rmq_store.server.pop.notifications import NotificationProcessor
from rmq_store.server.pop.peeks import PeekProcessor
from rmq_store.server.pop.pop_processor import PopProcessor
from rmq_store.server.pop.receipts import ReceiptProcessor
from rmq_store.server.processors.administration import AdministrationProcessor
from rmq_store.server.processors.committed_offsets import CommittedOffsets
from rmq_store.server.processors.members import Members
from rmq_store.server.processors.pulling import PullProcessor
from rmq_store.server.processors.queries import QueryProcessor
from rmq_store.server.processors.queue_ends import QueueEndsProcessor
from rmq_store.server.processors.queue_locks import QueueLocks
from rmq_store.server.processors.replies import ReplyProcessor
from rmq_store.server.processors.sending import OnStored, SendProcessor
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.processors.transactions import TransactionProcessor
from rmq_store.server.requests.dispatcher import Service
from rmq_store.server.requests.worker_pool import WorkerPool
from rmq_store.server.virtual_clock import ADVANCE_CLOCK, VirtualClockProcessor


@dataclass(frozen=True, slots=True)
class Pools:
    """The threads of a server, by kind of request."""

    send: WorkerPool
    pull: WorkerPool
    pop: WorkerPool
    admin: WorkerPool
    client: WorkerPool
    transaction: WorkerPool

    def each(self) -> tuple[WorkerPool, ...]:
        """All pools."""
        return self.send, self.pull, self.pop, self.admin, self.client, self.transaction


# BrokerConfig.java: threads (two processors), queue capacities, and how long a request may wait in its queue.
_FIGURES: Final = {
    "send": (1, 10_000, 200),
    "pull": (2, 100_000, 5_000),
    "pop": (2, 100_000, 5_000),
    "admin": (2, 20_000, 5_000),
    "client": (1, 50_000, 31_000),
    "transaction": (1, 100_000, 3_000),
}


def start_pools() -> Pools:
    """Start the threads."""
    return Pools(**{name: WorkerPool(name, *figures) for name, figures in _FIGURES.items()})


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a server that its requests share with its housekeeping."""

    served: ServedStore
    pools: Pools
    offsets: CommittedOffsets
    members: Members
    locks: QueueLocks
    pulls: PullProcessor
    pops: PopProcessor
    notifications: NotificationProcessor
    receipts: ReceiptProcessor
    transactions: TransactionProcessor
    routes: RouteTable
    on_stored: OnStored


def services(parts: Parts) -> dict[int, Service]:
    """The services of a broker that is a name server, too, by request code."""
    return {**_messages(parts), **_pops(parts), **_consumers(parts), **_administration(parts), **_name_server(parts)}


def _messages(parts: Parts) -> dict[int, Service]:
    served, pools = parts.served, parts.pools
    sends, replies, queries = (
        SendProcessor(served, parts.on_stored), ReplyProcessor(served, parts.members), QueryProcessor(served),
    )  # fmt: skip
    # With SYNC_FLUSH a send waits for the disk.
    is_sync = served.store.config.flush_disk_type == "SYNC_FLUSH"
    send = Service(
        sends.send, pools.send,
        together=partial(sends.send_together, may_wait=True),
        at_once=None if is_sync else partial(sends.send_together, may_wait=False),
    )  # fmt: skip
    pull = Service(parts.pulls.pull, pools.pull, at_once=parts.pulls.pull_at_once)
    return {
        RequestCode.SEND_MESSAGE: send,
        RequestCode.SEND_MESSAGE_V2: send,
        RequestCode.SEND_BATCH_MESSAGE: Service(sends.send, pools.send),
        RequestCode.SEND_REPLY_MESSAGE: Service(replies.reply, pools.client),
        RequestCode.SEND_REPLY_MESSAGE_V2: Service(replies.reply, pools.client),
        RequestCode.CONSUMER_SEND_MSG_BACK: Service(sends.send_back, pools.send),
        RequestCode.RECALL_MESSAGE: Service(sends.recall, pools.admin),
        RequestCode.END_TRANSACTION: Service(parts.transactions.end, pools.transaction),
        RequestCode.PULL_MESSAGE: pull,
        RequestCode.LITE_PULL_MESSAGE: pull,
        RequestCode.QUERY_MESSAGE: Service(queries.query, pools.admin),
        RequestCode.VIEW_MESSAGE_BY_ID: Service(queries.view, pools.admin),
    }


def _pops(parts: Parts) -> dict[int, Service]:
    receipts, pop = parts.receipts, parts.pools.pop
    return {
        RequestCode.POP_MESSAGE: Service(parts.pops.pop, pop),
        RequestCode.ACK_MESSAGE: Service(receipts.ack, pop),
        RequestCode.BATCH_ACK_MESSAGE: Service(receipts.ack_all, pop),
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: Service(receipts.change_invisible_time, pop),
        RequestCode.NOTIFICATION: Service(parts.notifications.ask, pop),
        RequestCode.PEEK_MESSAGE: Service(PeekProcessor(parts.served).peek, pop),
        RequestCode.POLLING_INFO: Service(parts.pops.polling_info, parts.pools.admin),
    }


def _consumers(parts: Parts) -> dict[int, Service]:
    offsets, members, locks = parts.offsets, parts.members, parts.locks
    admin, client = parts.pools.admin, parts.pools.client
    ends, assignments = QueueEndsProcessor(parts.served), Assignments(parts.served)
    return {
        RequestCode.HEART_BEAT: Service(members.heartbeat, client),
        RequestCode.UNREGISTER_CLIENT: Service(members.unregister, client),
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: Service(members.consumer_list, client),
        RequestCode.LOCK_BATCH_MQ: Service(locks.lock, client),
        RequestCode.UNLOCK_BATCH_MQ: Service(locks.unlock, client),
        RequestCode.CHECK_CLIENT_CONFIG: Service(members.check_client, client),
        RequestCode.QUERY_ASSIGNMENT: Service(assignments.query, client),
        RequestCode.SET_MESSAGE_REQUEST_MODE: Service(assignments.set_mode, admin),
        RequestCode.QUERY_CONSUMER_OFFSET: Service(offsets.query, admin),
        RequestCode.UPDATE_CONSUMER_OFFSET: Service(offsets.update, admin),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Service(ends.search, admin),
        RequestCode.GET_MAX_OFFSET: Service(ends.maximum, admin),
        RequestCode.GET_MIN_OFFSET: Service(ends.minimum, admin),
        RequestCode.GET_EARLIEST_MSG_STORETIME: Service(ends.earliest_time, admin),
        RequestCode.GET_TOPIC_STATS_INFO: Service(ends.topic_stats, admin),
    }


def _administration(parts: Parts) -> dict[int, Service]:
    served, members, offsets, admin = parts.served, parts.members, parts.offsets, parts.pools.admin
    admins, changes = AdministrationProcessor(served, members, offsets), Changes(served, offsets)
    resets, cleaning = Resets(served, members, offsets), Cleaning(served, offsets)
    progress = GroupProgress(served, members, offsets)
    questions, clock = MemberQuestions(served, members), VirtualClockProcessor(served.store)
    return {
        RequestCode.UPDATE_AND_CREATE_TOPIC: Service(admins.create_topic, admin),
        RequestCode.GET_TOPIC_CONFIG: Service(admins.topic_config, admin),
        RequestCode.GET_ALL_TOPIC_CONFIG: Service(admins.topic_configs, admin),
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Service(admins.system_topics, admin),
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Service(admins.groups, admin),
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Service(admins.group, admin),
        RequestCode.GET_CONSUMER_CONNECTION_LIST: Service(admins.consumer_connection, admin),
        RequestCode.GET_PRODUCER_CONNECTION_LIST: Service(admins.producer_connection, admin),
        RequestCode.GET_ALL_PRODUCER_INFO: Service(admins.producers, admin),
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: Service(admins.groups_of_topic, admin),
        RequestCode.GET_CONSUME_STATS: Service(progress.consume_stats, admin),
        RequestCode.GET_BROKER_CONSUME_STATS: Service(progress.all_consume_stats, admin),
        RequestCode.QUERY_CONSUME_TIME_SPAN: Service(progress.time_spans, admin),
        RequestCode.QUERY_TOPICS_BY_CONSUMER: Service(progress.topics_of_group, admin),
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: Service(progress.subscription, admin),
        RequestCode.GET_BROKER_RUNTIME_INFO: Service(admins.runtime_info, admin),
        RequestCode.GET_BROKER_CONFIG: Service(Settings(served).all, admin),
        RequestCode.VIEW_BROKER_STATS_DATA: Service(Rates(served).view, admin),
        RequestCode.QUERY_CONSUME_QUEUE: Service(QueueEntries(served, members).query, admin),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Service(changes.update_group, admin),
        RequestCode.DELETE_SUBSCRIPTIONGROUP: Service(changes.delete_group, admin),
        RequestCode.DELETE_TOPIC_IN_BROKER: Service(changes.delete_topic, admin),
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: Service(cleaning.queue_files, admin),
        RequestCode.CLEAN_UNUSED_TOPIC: Service(cleaning.unused_topics, admin),
        RequestCode.DELETE_EXPIRED_COMMITLOG: Service(cleaning.expired_segments, admin),
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Service(resets.reset, admin),
        RequestCode.GET_CONSUMER_RUNNING_INFO: Service(questions.running_info, admin),
        RequestCode.CONSUME_MESSAGE_DIRECTLY: Service(questions.consume_directly, admin),
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Service(MemberOffsets(members).ask, admin),
        ADVANCE_CLOCK: Service(clock.advance, admin),
        **dict.fromkeys(ALWAYS_REFUSED, Service(refuse_always, admin)),
    }


def _name_server(parts: Parts) -> dict[int, Service]:
    pairs, client = KVConfigs(), parts.pools.client
    routes = RouteProcessor(parts.routes, pairs)
    settings = NameServerSettings(Host.parse(parts.served.address).port)
    return {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: Service(routes.route, client),
        RequestCode.GET_BROKER_CLUSTER_INFO: Service(routes.clusters, client),
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Service(routes.topics, client),
        RequestCode.GET_TOPICS_BY_CLUSTER: Service(routes.topics_of_cluster, client),
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: Service(routes.system_topics, client),
        RequestCode.DELETE_TOPIC_IN_NAMESRV: Service(routes.delete_topic, client),
        RequestCode.PUT_KV_CONFIG: Service(pairs.put, client),
        RequestCode.GET_KV_CONFIG: Service(pairs.get, client),
        RequestCode.DELETE_KV_CONFIG: Service(pairs.delete, client),
        RequestCode.GET_KVLIST_BY_NAMESPACE: Service(pairs.pairs, client),
        RequestCode.GET_NAMESRV_CONFIG: Service(settings.all, client),
        RequestCode.REGISTER_BROKER: Service(routes.register, client),
        RequestCode.UNREGISTER_BROKER: Service(routes.unregister, client),
    }
