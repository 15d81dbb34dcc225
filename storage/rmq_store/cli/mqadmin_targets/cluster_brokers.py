"""The brokers of a cluster: state, settings, counts, cleaning."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rmq_store.cli.mqadmin_print.brokers import Process, QueueEntries, TopicRates, without_credentials
from rmq_store.cli.mqadmin_targets.cluster_scope import Scope, at, masters_of, require_route
from rmq_store.cli.mqadmin_targets.deletions import ClusterDeletion
from rmq_store.cli.mqadmin_targets.settings import EXPORTED_SETTINGS, is_exported_group, is_exported_topic
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.cli.mqadmin_print.by_broker import At
    from rmq_store.protocol.bodies.json_body import JsonBody
    from rmq_store.protocol.bodies.topics import BrokerStatsData
    from rmq_store.protocol.wire.command import RemotingCommand
    from rmq_store.remoting.admin.scope import BrokerProcess

_PUT, _GET = "TOPIC_PUT_NUMS", "GROUP_GET_NUMS"
_HOUR_MS = 3_600_000
_MOMENTS = ("YesterdayMorning", "TodayMorning", "TodayNow")
_COUNTS = ("readQueueNums", "writeQueueNums")


class ClusterBrokers:
    """State, settings, counts and cleaning of the brokers of a scope, and the changes of settings."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._cluster = scope.cluster
        self._report = scope.report
        self._poll = scope
        self.silent: set[BrokerProcess] = set()
        """The processes that did not answer at the last poll."""

    def states(self) -> list[tuple[At, dict[str, str]]]:
        """The figures of each chosen broker."""
        return [(at(process), state) for process, state in _figures(self._scope, self._scope.chosen())]

    def settings(self) -> list[tuple[At, dict[str, Any]]]:
        """The settings of each chosen process, with stars in place of credentials; of a cluster the slaves, too."""
        found = []
        for process, settings in self._settings(self._scope.chosen_and_slaves()):
            role = "" if self._scope.broker_address is not None else "My Slave: " if process.broker_id else "Master: "
            title = f"{role}{process.address}"
            found.append((at(process)._replace(title=title), without_credentials(settings)))
        return found

    def update_setting(self, key: str, value: str) -> list[tuple[At, dict[str, Any]]]:
        """Change a setting of the chosen brokers, and of their slaves if these are asked for.

        Raises:
            UsageError: one of them has no such setting: a broker itself would answer "success".
        """
        from rmq_store.remoting.questions.answer import checked
        from rmq_store.remoting.questions.brokers import ask_update_broker_config

        scope = self._scope
        processes = scope.chosen_and_slaves() if scope.with_slaves else scope.chosen()
        settings = dict(self._settings(processes))
        without = [process for process, known in settings.items() if key not in known]
        if without:
            places = ", ".join(f"{process.broker_name} ({process.address})" for process in without)
            raise UsageError(f"broker {places} has no setting {key!r}: nothing is changed at any broker")
        answers = scope.ask_each(settings, ask_update_broker_config(key, value), checked)
        return [(at(process), {key: value}) for process, _ in answers]

    def processes(self) -> list[Process]:
        """Every process of the cluster, as it answers now."""
        from rmq_store.cli.target.failure_report import ProcessFailureReport
        from rmq_store.remoting.admin.scope import processes

        self._cluster.routes.clusters(refresh=True)
        self._poll = self._scope._replace(report=ProcessFailureReport())
        answers = _figures(self._poll, processes(self._cluster, self._scope.cluster_name))
        return [_process(process, state) for process, state in answers]

    def end_poll(self) -> None:
        """Name on stderr the processes that are silent since this poll, and those that answer again."""
        self.silent = self._poll.report.report_changes(self.silent)

    def rates(self, topic: str | None, *, active: bool) -> list[TopicRates]:
        """Messages of each topic, or of one, per second and in the last day, what its groups got, and their lag;
        `active`: not of topics without messages of the last day. UnknownTopicError: no broker has the topic.
        """
        from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX

        names = self._cluster.topics() if topic is None else [require_route(self._cluster, topic).topic]
        names = [name for name in names if not name.startswith((RETRY_PREFIX, DLQ_PREFIX))]
        return [row for name in names for row in self._rates_of(name, active=active)]

    def entries(self, topic: str, queue_id: int, index: int, count: int) -> QueueEntries:
        """Entries of a queue as one broker has them in its files: that of -b, or the only one that has the queue.

        Raises:
            UnknownTopicError: no broker has the topic. UsageError: not this one, or several have such a queue.
        """
        from rmq_store.cli.mqadmin_targets.cluster_messages import queue_of
        from rmq_store.remoting.admin.scope import ask, process_at
        from rmq_store.remoting.questions.brokers import ask_queue_entries, read_queue_entries

        cluster, address = self._cluster, self._scope.broker_address
        route = require_route(cluster, topic)
        if address is not None:
            process = process_at(cluster, address)
        else:
            name = queue_of(cluster, topic, None, queue_id).broker_name
            process = next(one for one in masters_of(route) if one.broker_name == name)
        if process.broker_name not in route.queues:
            raise UsageError(f"broker {process.broker_name} does not have the topic {topic!r}")
        found = ask(cluster, process, ask_queue_entries(cluster, topic, queue_id, index, count), read_queue_entries)
        entries = [(one.physic_offset, one.physic_size, one.tags_code) for one in found.queue_data]
        return QueueEntries(found.min_queue_index, found.max_queue_index, entries)

    def unused_topics(self) -> ClusterDeletion:
        """The deletion of queues of topics that a broker does not have any more."""
        from rmq_store.remoting.questions.brokers import ask_clean_unused_topics

        return self._cleaning(ask_clean_unused_topics(), "delete queues of topics that are gone")

    def expired_queue_files(self) -> ClusterDeletion:
        """The deletion of queue files whose messages were all deleted by retention."""
        from rmq_store.remoting.questions.brokers import ask_clean_expired_consume_queues

        return self._cleaning(ask_clean_expired_consume_queues(), "delete queue files without messages")

    def expired_log_files(self) -> ClusterDeletion:
        """The deletion of files of the log that are older than fileReservedTime."""
        from rmq_store.remoting.questions.brokers import ask_delete_expired_commit_log

        what = "delete files of the log that are older than fileReservedTime"
        return self._cleaning(ask_delete_expired_commit_log(), what)

    def metadata(self, *, topics: bool, groups: bool, with_special: bool) -> dict[str, Any]:
        """The topics and groups of users at the chosen brokers, and the time. A topic has the sums of its queues over
        the brokers, as with mqadmin.
        """
        topic_table: dict[str, dict[str, Any]] = {}
        group_table: dict[str, dict[str, Any]] = {}
        answers = self._report.ask_each(self._scope.chosen(), partial(self._tables, with_special))
        for _, (topics_there, groups_there) in answers:
            for name, config in topics_there.items():
                known = topic_table.get(name)
                sums = {} if known is None else {key: known[key] + config[key] for key in _COUNTS}
                topic_table[name] = {**config, **sums}
            group_table |= groups_there
        found: dict[str, Any] = {}
        if topics:
            found["topicConfigTable"] = dict(sorted(topic_table.items()))
        if groups:
            found["subscriptionGroupTable"] = dict(sorted(group_table.items()))
        return {**found, "exportTime": time.time_ns() // 1_000_000}

    def configs(self) -> dict[str, Any]:
        """The settings of the cluster's masters that mqadmin exports, and the cluster's size."""
        from rmq_store.remoting.admin.scope import processes, the_cluster_name

        cluster = self._cluster
        known = processes(cluster, self._scope.cluster_name or the_cluster_name(cluster))
        masters = [one for one in known if one.broker_id == 0]
        answers = self._settings(masters)
        name_servers = len(cluster.name_servers.addresses())
        settings = {
            process.broker_name: {name: config[name] for name in sorted(EXPORTED_SETTINGS) if name in config}
            for process, config in answers
        }
        slaves = len(known) - len(masters)
        scale = {"masterBrokerSize": len(masters), "namesrvSize": name_servers, "slaveBrokerSize": slaves}
        return {"brokerConfigs": settings, "clusterScale": scale}

    def _settings(self, processes: list[BrokerProcess]) -> list[tuple[BrokerProcess, dict[str, str]]]:
        from rmq_store.remoting.questions.brokers import ask_broker_config, read_broker_config

        return list(self._scope.ask_each(processes, ask_broker_config(), read_broker_config))

    def _rates_of(self, topic: str, *, active: bool) -> list[TopicRates]:
        from rmq_store.remoting.admin.groups import topic_groups
        from rmq_store.remoting.questions.brokers import ask_stats, read_stats
        from rmq_store.remoting.questions.groups import ask_consume_stats, read_consume_stats

        cluster = self._cluster
        route = cluster.route(topic)
        # One that did not answer is not waited for again and again.
        masters = masters_of(route) if route is not None else []
        masters = [one for one in masters if one not in self._report.missing]
        wire_topic = cluster.wire_topic(topic)

        def stats(name: str, key: str) -> list[BrokerStatsData]:
            return [found for _, found in self._scope.ask_each(masters, ask_stats(name, key), read_stats)]

        in_tps, in_day = _sums(stats(_PUT, wire_topic))
        if active and not in_day:
            return []
        asked = [self._report.ask(one, partial(topic_groups, cluster, [one], topic)) for one in masters]
        groups = sorted({group for found in asked for group in found or ()})
        if not groups:
            return [TopicRates(topic, None, 0, in_tps, in_day)]
        rows = []
        for group in groups:
            out_tps, out_day = _sums(stats(_GET, f"{wire_topic}@{cluster.wire_group(group)}"))
            answers = self._scope.ask_each(masters, ask_consume_stats(cluster, group, topic), read_consume_stats)
            queues = [one for _, found in answers for one in found.offset_table.values()]
            lag = sum(one.broker_offset - one.consumer_offset for one in queues)
            rows.append(TopicRates(topic, group, max(lag, 0), in_tps, in_day, out_tps, out_day))
        return rows

    def _cleaning(self, order: RemotingCommand, what: str) -> ClusterDeletion:
        """`what` each broker is told to delete: that of -b, each master of -c, or of all clusters."""
        from rmq_store.remoting.questions.brokers import CLEAN_TIMEOUT_MS

        processes = self._scope.chosen_or_all()
        return ClusterDeletion(
            self._scope, processes, f"Tell {len(processes)} brokers to delete these?",
            [f"{one.broker_name} ({one.address}): {what}" for one in processes],
            [order], timeout_ms=CLEAN_TIMEOUT_MS, last_lines=["success"],
        )  # fmt: skip

    def _tables(
        self, with_special: bool, process: BrokerProcess
    ) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
        """Topics and groups of one broker by name, without those of the system."""
        from rmq_store.remoting.admin.scope import ask
        from rmq_store.remoting.questions.groups import ask_group_configs, read_group_configs
        from rmq_store.remoting.questions.topics import ask_topic_configs, read_topic_configs

        # A broker has topics of these names for itself.
        own = {process.broker_name, process.cluster_name, f"{process.cluster_name}_REPLY_TOPIC"}
        topics = {
            name: config
            for name, config in ask(self._cluster, process, ask_topic_configs(), read_topic_configs).items()
            if name not in own and is_exported_topic(name, with_special=with_special)
        }
        configs = ask(self._cluster, process, ask_group_configs(), read_group_configs)
        groups = {name: config for name, config in configs.items() if is_exported_group(name)}
        return self._plain(topics, "topicName"), self._plain(groups, "groupName")

    def _plain(self, table: Mapping[str, JsonBody], member: str) -> dict[str, dict[str, Any]]:
        """As JSON, by names without the namespace; names of other namespaces are left out."""
        from rmq_store.remoting.cluster import names

        namespace, plain = self._cluster.settings.namespace, self._cluster.plain_name
        return {
            plain(name): {**config.to_json(), member: plain(name)}
            for name, config in table.items()
            if names.is_in_namespace(namespace, name)
        }


def _figures(scope: Scope, processes: list[BrokerProcess]) -> list[tuple[BrokerProcess, dict[str, str]]]:
    from rmq_store.remoting.questions.brokers import ask_runtime_info, read_runtime_info

    return list(scope.ask_each(processes, ask_runtime_info(), read_runtime_info))


def _sums(found: list[BrokerStatsData]) -> tuple[float, int]:
    """Messages per second in the last minute, and in the last day (StatsAllSubCommand#compute24HourSum)."""
    days = (one.stats_day.sum or one.stats_hour.sum or one.stats_minute.sum for one in found)
    return sum(one.stats_minute.tps for one in found), sum(days)


def _process(process: BrokerProcess, state: Mapping[str, str]) -> Process:
    """The row of a process, from its figures."""
    send, pull, ack = (state.get(f"{name}ThreadPoolQueueSize", "") for name in ("send", "pull", "ack"))
    send_wait, pull_wait, ack_wait = (
        state.get(f"{name}ThreadPoolQueueHeadWaitTimeMills", "") for name in ("send", "pull", "ack")
    )
    in_load, out_load = f"({send},{send_wait}ms)", f"({pull},{pull_wait}ms"
    out_load += f"|{ack},{ack_wait}ms)" if ack else ")"
    behind = _number(state.get("timerReadBehind"))
    timer = ""
    if behind is not None:
        waiting = (_number(state.get("timerCongestNum")) or 0) / 10_000
        timer_in, timer_out = (_number(state.get(f"timer{name}queueTps")) or 0 for name in ("En", "De"))
        progress = f"({waiting:.1f}w, {timer_in:.1f}, {timer_out:.1f})"
        timer = f"{behind:.0f}-{state.get('timerOffsetBehind', '0')}{progress}"
    # Messages that groups really got; brokers of 4.9 spell it in another way.
    in_tps, out_tps = _rate(state, "putTps"), _rate(state, "getTransferredTps") or _rate(state, "getTransferedTps")
    wait = state.get("pageCacheLockTimeMills", "")
    put, got = ([_number(state.get(f"msg{kind}Total{moment}")) or 0 for moment in _MOMENTS] for kind in ("Put", "Get"))
    return Process(
        process.cluster_name, process.broker_name, process.broker_id, process.address,
        state.get("brokerVersionDesc", ""),
        live=(f"{in_tps:.2f}{in_load}", f"{out_tps:.2f}{out_load}", timer, wait),
        hours=_hours(state), space=_number(state.get("commitLogDiskRatio")), activated=state.get("brokerActive", ""),
        totals=(put[1] - put[0], got[1] - got[0], put[2] - put[1], got[2] - got[1]),
        more={"version": state.get("brokerVersionDesc"), "inTps": in_tps, "outTps": out_tps},
    )  # fmt: skip


def _hours(state: Mapping[str, str]) -> float:
    earliest_ms = _number(state.get("earliestMessageTimeStamp"))
    if earliest_ms is None or earliest_ms <= 0:
        return 0.0
    return max(time.time() * 1000 - earliest_ms, 0) / _HOUR_MS


def _rate(state: Mapping[str, str], name: str) -> float:
    """The first of several rates: that of the last 10 seconds."""
    return _number(next(iter(state.get(name, "").split()), None)) or 0.0


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
