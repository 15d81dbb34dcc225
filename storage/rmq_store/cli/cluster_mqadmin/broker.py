"""The brokers of a cluster: state, settings, rates. Source: tools/command/broker/*.java, ClusterListSubCommand.java."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING

import click

from rmq_store.cli.cluster_mqadmin.common import BROKER, CLUSTER, Brokers, chosen, like
from rmq_store.cli.mqadmin import broker as store_commands
from rmq_store.cli.mqadmin_print.brokers import (
    without_credentials,
    write_cluster_head,
    write_cluster_line,
    write_settings,
    write_state,
)
from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.shared.output import write_json
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rmq_store.remoting.admin.scope import BrokerProcess
    from rmq_store.remoting.cluster.cluster import Cluster

    Answers = Sequence[tuple[BrokerProcess, Mapping[str, str]]]

_HOUR_MS = 3_600_000
_MOMENTS = ("YesterdayMorning", "TodayMorning", "TodayNow")
_TOTALS_LINE = "%-16s  %-32s %14s %14s %14s %14s"
_TOTALS_COLUMNS = ("#Cluster Name", "#Broker Name", "#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday")


@like(store_commands.broker_status, BROKER, CLUSTER)
def broker_status(target: ClusterTarget, as_json: bool, broker_address: str | None, cluster_name: str | None) -> None:
    """Runtime information of one broker (-b), or of every master of a cluster."""
    brokers = Brokers()
    with target.open() as cluster:
        answers = _figures(cluster, brokers, chosen(cluster, broker_address, cluster_name))
    if as_json:
        write_json([{**_place(process), **state} for process, state in answers])
    elif broker_address is not None:
        for _, state in answers:
            write_state(state, as_json=False)
    else:
        for process, state in answers:
            for name, value in sorted(state.items()):
                write_line("%-24s %-32s: %s", process.address, name, value)
    brokers.tell()


@like(store_commands.get_broker_config, BROKER, CLUSTER)
def get_broker_config(
    target: ClusterTarget, as_json: bool, broker_address: str | None, cluster_name: str | None
) -> None:
    """Settings of one broker (-b), or of every master of a cluster and its slaves, under their names in broker.conf.

    Passwords, keys and other credentials are shown as ***.
    """
    brokers = Brokers()
    with target.open() as cluster:
        answers = _settings(cluster, brokers, _chosen(cluster, broker_address, cluster_name, with_slaves=True))
    if as_json:
        write_json(
            [
                {**_place(process), "brokerId": process.broker_id, "settings": without_credentials(settings)}
                for process, settings in answers
            ]
        )
    for process, settings in [] if as_json else answers:
        role = "" if broker_address is not None else "My Slave: " if process.broker_id else "Master: "
        write_settings(f"{role}{process.address}", without_credentials(settings))
    brokers.tell()


def _settings(cluster: Cluster, brokers: Brokers, processes: Sequence[BrokerProcess]) -> Answers:
    from rmq_store.remoting.admin.scope import ask
    from rmq_store.remoting.questions.brokers import ask_broker_config, read_broker_config

    return brokers.ask_each(processes, partial(ask, cluster, command=ask_broker_config(), read=read_broker_config))


def _chosen(
    cluster: Cluster, broker_address: str | None, cluster_name: str | None, *, with_slaves: bool
) -> list[BrokerProcess]:
    from rmq_store.remoting.admin.scope import processes

    found = chosen(cluster, broker_address, cluster_name)
    return processes(cluster, found[0].cluster_name) if with_slaves and broker_address is None and found else found


_SLAVES_TOO = click.Option(
    ["-a", "--updateAllBroker", "with_slaves"], type=bool, metavar="BOOLEAN", default=False,
    help="With true, the slaves of the cluster, too.",
)  # fmt: skip


@like(store_commands.update_broker_config, BROKER, CLUSTER, _SLAVES_TOO)
def update_broker_config(
    target: ClusterTarget, as_json: bool, key: str, value: str, broker_address: str | None, cluster_name: str | None,
    with_slaves: bool,
) -> None:  # fmt: skip
    """Change a setting of one broker (-b), or of every master of a cluster; the brokers write it into their files.

    Most settings take effect at once, some at the next start. A name that one of the brokers does not have is refused
    before the first change: a broker itself would answer "success".
    """
    from rmq_store.remoting.admin.scope import ask
    from rmq_store.remoting.questions.answer import checked
    from rmq_store.remoting.questions.brokers import ask_update_broker_config

    brokers = Brokers()

    def change(process: BrokerProcess) -> str:
        ask(cluster, process, ask_update_broker_config(key, value), checked)
        return process.address

    with target.open() as cluster:
        asked = _chosen(cluster, broker_address, cluster_name, with_slaves=with_slaves)
        settings = dict(_settings(cluster, brokers, asked))
        _require_setting(settings, key)
        answers = brokers.ask_each(settings, change)
    if as_json:
        write_json([{**_place(process), key: value} for process, _ in answers])
    for _, address in [] if as_json else answers:
        write_line("update broker config success, %s", address)
    brokers.tell()


def _require_setting(settings: Mapping[BrokerProcess, Mapping[str, str]], name: str) -> None:
    """Raise UsageError if the settings of a process lack a name; it names all of these processes."""
    without = [process for process, known in settings.items() if name not in known]
    if without:
        places = ", ".join(f"{process.broker_name} ({process.address})" for process in without)
        raise UsageError(f"broker {places} has no setting {name!r}: nothing is changed at any broker")


_MORE = click.Option(["-m", "--moreStats", "more"], is_flag=True, help="Messages of today and yesterday instead.")


@like(store_commands.cluster_list, CLUSTER, _MORE)
def cluster_list(
    target: ClusterTarget, as_json: bool, every_s: float | None, cluster_name: str | None, more: bool
) -> None:
    """Every process of a cluster: version, rates, the age of its oldest message (#Hour), and disk usage (#SPACE).

    A process that does not answer has no line; stderr names it, and the exit code is 1. With -i stderr names it when it
    stops answering, and when it answers again.
    """
    silent: set[BrokerProcess] = set()
    with target.open() as cluster, contextlib.suppress(KeyboardInterrupt):
        while True:
            brokers = Brokers()
            answers = _answers(cluster, brokers, cluster_name)
            if as_json:
                write_json([_json(process, state) for process, state in answers])
            elif more:
                _write_totals(answers)
            else:
                write_cluster_head()
                for process, state in answers:
                    _write_process(process, state)
            silent = brokers.tell_changes(silent)
            if every_s is None:
                break
            time.sleep(every_s)
    if silent:
        raise click.exceptions.Exit(1)


def _answers(cluster: Cluster, brokers: Brokers, cluster_name: str | None) -> Answers:
    from rmq_store.remoting.admin.scope import processes

    cluster.routes.clusters(refresh=True)
    return _figures(cluster, brokers, processes(cluster, cluster_name))


def _figures(cluster: Cluster, brokers: Brokers, processes: Sequence[BrokerProcess]) -> Answers:
    from rmq_store.remoting.admin.scope import ask
    from rmq_store.remoting.questions.brokers import ask_runtime_info, read_runtime_info

    return brokers.ask_each(processes, partial(ask, cluster, command=ask_runtime_info(), read=read_runtime_info))


def _write_process(process: BrokerProcess, state: Mapping[str, str]) -> None:
    """ClusterListSubCommand#printClusterBaseInfo."""
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
        in_tps, out_tps = (_number(state.get(f"timer{name}queueTps")) or 0 for name in ("En", "De"))
        progress = f"({waiting:.1f}w, {in_tps:.1f}, {out_tps:.1f})"
        timer = f"{behind:.0f}-{state.get('timerOffsetBehind', '0')}{progress}"
    live = (f"{_rate(state, 'putTps'):.2f}{in_load}", f"{_out_tps(state):.2f}{out_load}", timer)
    wait = state.get("pageCacheLockTimeMills", "")
    place = (
        process.cluster_name, process.broker_name, str(process.broker_id), process.address,
        state.get("brokerVersionDesc", ""),
    )  # fmt: skip
    activated = state.get("brokerActive", "")
    write_cluster_line(place, (*live, wait), _hours(state), _number(state.get("commitLogDiskRatio")), activated)


def _write_totals(answers: Answers) -> None:
    """ClusterListSubCommand#printClusterMoreStats."""
    write_line(_TOTALS_LINE, *_TOTALS_COLUMNS)
    for process, state in answers:
        put, got = (
            [_number(state.get(f"msg{kind}Total{moment}")) or 0 for moment in _MOMENTS] for kind in ("Put", "Get")
        )
        figures = (put[1] - put[0], got[1] - got[0], put[2] - put[1], got[2] - got[1])
        shown = (f"{figure:.0f}" for figure in figures)
        write_line(_TOTALS_LINE, process.cluster_name, process.broker_name, *shown)


def _json(process: BrokerProcess, state: Mapping[str, str]) -> dict[str, object]:
    return {
        "cluster": process.cluster_name,
        "brokerName": process.broker_name,
        "brokerId": process.broker_id,
        "address": process.address,
        "version": state.get("brokerVersionDesc"),
        "inTps": _rate(state, "putTps"),
        "outTps": _out_tps(state),
        "hours": round(_hours(state), 2),
        "diskUsedRatio": _number(state.get("commitLogDiskRatio")),
    }


def _hours(state: Mapping[str, str]) -> float:
    earliest_ms = _number(state.get("earliestMessageTimeStamp"))
    if earliest_ms is None or earliest_ms <= 0:
        return 0.0
    return max(time.time() * 1000 - earliest_ms, 0) / _HOUR_MS


def _out_tps(state: Mapping[str, str]) -> float:
    """What groups really got; brokers of 4.9 spell it in another way."""
    return _rate(state, "getTransferredTps") or _rate(state, "getTransferedTps")


def _place(process: BrokerProcess) -> dict[str, object]:
    return {"brokerName": process.broker_name, "brokerAddr": process.address}


def _rate(state: Mapping[str, str], name: str) -> float:
    """The first of several rates: that of the last 10 seconds."""
    return _number(next(iter(state.get(name, "").split()), None)) or 0.0


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


COMMANDS = (cluster_list, broker_status, get_broker_config, update_broker_config)
