"""What administrators ask of a simulated cluster: settings, groups, figures, deletions. Answers follow 5.5.0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from helpers.cluster.simulated import SimulatedCluster
from helpers.cluster.simulated.broker import SimulatedBroker
from helpers.cluster.simulated.server import SUCCESS, V4_9_7, Reply
from rmq_store.protocol.bodies.groups import (
    ConsumeStats,
    GroupList,
    OffsetWrapper,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from rmq_store.protocol.bodies.routes import KVTable
from rmq_store.protocol.bodies.topics import BrokerStatsData, BrokerStatsItem, TopicConfig
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode

FIGURES: Mapping[str, str] = {
    "brokerVersionDesc": "V5_5_0", "putTps": "1.5 1.0 ", "getTransferredTps": "2.5 2.0 ",
    "sendThreadPoolQueueSize": "0", "sendThreadPoolQueueHeadWaitTimeMills": "0", "pullThreadPoolQueueSize": "0",
    "pullThreadPoolQueueHeadWaitTimeMills": "0", "pageCacheLockTimeMills": "0", "commitLogDiskRatio": "0.25",
    "earliestMessageTimeStamp": "-1", "brokerActive": "true", "msgPutTotalYesterdayMorning": "1",
    "msgPutTotalTodayMorning": "4", "msgPutTotalTodayNow": "9", "msgGetTotalYesterdayMorning": "0",
    "msgGetTotalTodayMorning": "2", "msgGetTotalTodayNow": "5",
}  # fmt: skip


@dataclass
class Administration:
    """The state of one broker that only administrators see. `asked`: the requests that change something."""

    broker: SimulatedBroker
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    groups: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=lambda: {"fileReservedTime": "72", "brokerName": "x"})
    asked: list[RemotingCommand] = field(default_factory=list)

    def __post_init__(self) -> None:
        made = self.broker
        made.answer(RequestCode.GET_BROKER_RUNTIME_INFO, lambda _: (SUCCESS, {}, KVTable(table=FIGURES).encode()))
        made.answer(RequestCode.GET_BROKER_CONFIG, lambda _: (SUCCESS, {}, self._settings()))
        made.answer(RequestCode.UPDATE_BROKER_CONFIG, self._change)
        made.answer(RequestCode.UPDATE_AND_CREATE_TOPIC, self._create_topic)
        made.answer(RequestCode.GET_TOPIC_CONFIG, self._topic_config)
        made.answer(RequestCode.DELETE_TOPIC_IN_BROKER, self._delete_topic)
        made.answer(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, lambda _: (SUCCESS, {}, self._groups()))
        made.answer(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self._update_group)
        made.answer(RequestCode.DELETE_SUBSCRIPTIONGROUP, self._delete_group)
        made.answer(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, self._topic_groups)
        made.answer(RequestCode.GET_CONSUME_STATS, self._consume_stats)
        made.answer(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, self._reset)
        made.answer(RequestCode.CLEAN_UNUSED_TOPIC, self._note)
        made.answer(RequestCode.VIEW_BROKER_STATS_DATA, lambda _: (SUCCESS, {}, _RATES.encode()))

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group has an offset."""
        self.broker.groups.add(group)
        self.broker.offsets[group, topic, queue_id] = offset

    def _note(self, request: RemotingCommand) -> Reply:
        self.asked.append(request)
        return SUCCESS, {}, b""

    def _settings(self) -> bytes:
        return "".join(f"{name}={value}\n" for name, value in self.settings.items()).encode()

    def _change(self, request: RemotingCommand) -> Reply:
        name, _, value = request.body.decode().strip().partition("=")
        self.settings[name] = value  # as a broker: whatever the name
        return self._note(request)

    def _create_topic(self, request: RemotingCommand) -> Reply:
        fields = request.ext_fields
        self.topics[fields["topic"]] = TopicConfig(
            topic_name=fields["topic"], read_queue_nums=int(fields["readQueueNums"]),
            write_queue_nums=int(fields["writeQueueNums"]), perm=int(fields["perm"]),
        )  # fmt: skip
        self.broker.queues.set_counts(fields["topic"], int(fields["readQueueNums"]), int(fields["writeQueueNums"]))
        return self._note(request)

    def _topic_config(self, request: RemotingCommand) -> Reply:
        topic = request.ext_fields["topic"]
        if topic not in self.broker.queues.topics:
            return 17, {}, b""
        read, write = self.broker.queues.counts(topic)
        default = TopicConfig(topic_name=topic, read_queue_nums=read, write_queue_nums=write)
        return SUCCESS, {}, self.topics.get(topic, default).encode()

    def _delete_topic(self, request: RemotingCommand) -> Reply:
        self.broker.queues.topics.pop(request.ext_fields["topic"], None)
        return self._note(request)

    def _groups(self) -> bytes:
        return SubscriptionGroupTable(subscription_group_table=self.groups).encode()

    def _update_group(self, request: RemotingCommand) -> Reply:
        config = SubscriptionGroupConfig.decode(request.body)
        self.groups[config.group_name] = config
        self.broker.groups.add(config.group_name)
        return self._note(request)

    def _delete_group(self, request: RemotingCommand) -> Reply:
        self.groups.pop(request.ext_fields["groupName"], None)
        return self._note(request)

    def _topic_groups(self, request: RemotingCommand) -> Reply:
        topic = request.ext_fields["topic"]
        found = sorted({group for group, name, _ in self.broker.offsets if name == topic})
        return SUCCESS, {}, GroupList(group_list=tuple(found)).encode()

    def _consume_stats(self, request: RemotingCommand) -> Reply:
        group, only = request.ext_fields["consumerGroup"], request.ext_fields.get("topic")
        table = {}
        for (name, topic, queue_id), offset in self.broker.offsets.items():
            if name == group and only in (None, topic):
                queue = self.broker.queues.topics[topic][queue_id]
                table[MessageQueue(topic, self.broker.name, queue_id)] = OffsetWrapper(
                    broker_offset=queue.end, consumer_offset=offset, pull_offset=offset
                )
        return SUCCESS, {}, ConsumeStats(offset_table=table).encode()

    def _reset(self, request: RemotingCommand) -> Reply:
        fields = request.ext_fields
        table = {}
        # A broker of 4.x resets the queues that may be written; one of 5.x those that may be read.
        read, write = self.broker.queues.counts(fields["topic"])
        for queue_id in range(write if self.broker.version == V4_9_7 else read):
            queue = self.broker.queues.topics[fields["topic"]][queue_id]
            time_ms = int(fields["timestamp"])
            offset = queue.end if time_ms < 0 else queue.search(time_ms)
            self.commit(fields["group"], fields["topic"], queue_id, offset)
            table[MessageQueue(fields["topic"], self.broker.name, queue_id)] = offset
        self._note(request)
        return SUCCESS, {}, ResetOffsetBody(offset_table=table).encode()


_RATES = BrokerStatsData(
    stats_minute=BrokerStatsItem(sum=60, tps=1.0),
    stats_hour=BrokerStatsItem(sum=100),
    stats_day=BrokerStatsItem(sum=200),
)


class AdministeredCluster(SimulatedCluster):
    """A simulated cluster with `administration` by broker name. `deleted_routes`: topics, as a name server heard."""

    def __init__(self, brokers: int = 1) -> None:
        super().__init__(brokers)
        self.administration = {name: Administration(broker) for name, broker in self.brokers.items()}
        self.deleted_routes: list[str] = []
        self.answer(RequestCode.DELETE_TOPIC_IN_NAMESRV, self._delete_route)

    def _delete_route(self, request: RemotingCommand) -> Reply:
        self.deleted_routes.append(request.ext_fields["topic"])
        return SUCCESS, {}, b""

    @property
    def changes(self) -> list[tuple[str, int]]:
        """(broker, code) of all requests that changed something, broker by broker."""
        return [(name, one.code) for name, each in self.administration.items() for one in each.asked]
