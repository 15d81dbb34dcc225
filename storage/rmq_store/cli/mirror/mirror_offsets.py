"""`rmq mirror offsets`: move the offsets of groups to the other side of a mirror."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.mirror.mirror_options import kafka_options
from rmq_store.cli.shared.confirm import changing_options, confirm
from rmq_store.cli.shared.output import printable, wide_option, write_json, write_table
from rmq_store.cli.shared.parameters import Seconds, store_options
from rmq_store.cli.shared.stop_signal import stopped_by_signals
from rmq_store.errors import KafkaUnavailableError, StoreError, StoreFailedError, UsageError
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.bridge.kafka.connection import KafkaConnection
    from rmq_store.bridge.offsets.pair import Link
    from rmq_store.bridge.offsets.plan import GroupPlan, Move, Rules

Opened = Callable[[], AbstractContextManager["Link"]]

_COLUMNS = ("GROUP", "TOPIC", "QUEUE", "POSITION", "TARGET", "OLD", "NEW", "AGAIN", "MISSING", "AHEAD", "RESULT")


@dataclass(frozen=True)
class _Asked:
    """The options of the command, without those that name the sides. `groups`: names in source and target."""

    groups: Sequence[tuple[str, str]]
    all_groups: bool
    rules: Rules
    force: bool
    ignore_waiting: bool


@dataclass
class _Outcome:
    """The outcome of one group: its plan, or the reason why there is none; `committed`: number of committed positions.
    """

    source_group: str
    target_group: str
    plan: GroupPlan | None
    error: str = ""
    committed: int = 0

    @property
    def is_clean(self) -> bool:
        return not self.error and self.plan is not None and self.plan.is_clean


@click.command(
    short_help="Move groups to the other side of a mirror.",
    epilog="\b\nExamples:\n"
    "  rmq mirror offsets /data/store --to rmq --name in --cluster-id rmq-eu --bootstrap-servers kafka:9092 \\\n"
    "      -g billing --dry-run\n"
    "  rmq mirror offsets /data/store --to rmq --name in --cluster-id rmq-eu --bootstrap-servers kafka:9092 \\\n"
    "      --all-groups --yes --every 60\n"
    "  rmq mirror offsets /data/store --to kafka --name out --back-name in --cluster-id rmq-eu \\\n"
    "      --bootstrap-servers kafka:9092 -g billing_v2=billing.v2 --yes",
)
@store_options()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table; a line for each round.")
@wide_option
@changing_options
@kafka_options
@click.option("--to", "direction", type=click.Choice(["rmq", "kafka"]), required=True,
              help="Side to which the groups move: from Kafka to the store, or from the store to Kafka.")  # fmt: skip
@click.option("--name", required=True, metavar="NAME", help="Name of the mirror that copies in the same direction.")
@click.option("--back-name", metavar="NAME",
              help="Name of the mirror that copies in the other direction; --name by default.")  # fmt: skip
@click.option(
    "--cluster-id", required=True, metavar="ID", help="Cluster id of the RocketMQ side, the same as for the mirror."
)
@click.option("-g", "--group", "moves", multiple=True, metavar="NAME[=NAME]",
              help="A group, and its name on the other side if that differs. May be repeated.")  # fmt: skip
@click.option("--all-groups", is_flag=True,
              help="All groups with positions on mirrored topics; those whose positions cannot be read are "
                   "named.")  # fmt: skip
@click.option("--uncommitted", type=click.Choice(["skip", "start"]), default="skip", show_default=True,
              help="For a queue in which the group has no position: skip and report it, or start at its "
                   "beginning.")  # fmt: skip
@click.option(
    "--accept-missing", is_flag=True, help="Move a group even if the other side lacks records that it has not consumed."
)
@click.option(
    "--pass-letters", is_flag=True, help="Skip dead letters of the mirror that copies in the other direction."
)
@click.option(
    "--ignore-waiting", is_flag=True, help="Move a group even if the store has retries of it; they stay in the store."
)
@click.option(
    "--force", is_flag=True, help="Move a group of the store even if it has members, which may overwrite the offsets."
)
@click.option("--force-back", is_flag=True, help="Move a group back if its offset there is further than here.")
@click.option("--every", "every_s", type=Seconds(min=1), metavar="SECONDS",
              help="Repeat until Ctrl-C or SIGTERM, with this many seconds, or a duration (1m), between two "
                   "rounds. Needs --yes.")  # fmt: skip
def offsets(
    root: Path,
    as_json: bool,
    dry_run: bool,
    yes: bool,
    direction: str,
    name: str,
    back_name: str | None,
    cluster_id: str,
    connection: KafkaConnection,
    every_s: float | None,
    **given: Any,
) -> None:
    """Move the offsets of consumer groups to the other side of a mirror. A group skips no record there, and gets as few
    as possible twice.

    NEW is the first record that the group has not consumed. AGAIN counts later records that it has consumed; there are
    such records only if other programs write to the topic too. No offset moves back, and no offset is committed before
    the mirror has copied up to the group's position. Stop the group first; with --every, the positions follow the group
    until then. Exit status 1: an offset was not committed, or would not be: see RESULT.
    """
    from rmq_store import Store

    asked = _asked(given)
    if every_s is not None and not yes and not dry_run:
        raise UsageError("--every cannot ask: add --yes or --dry-run")
    if every_s is not None and asked.rules.force_back:
        raise UsageError("--force-back with --every would take a group back again and again")
    with Store.open(root) as store:
        opened = _opener(store, connection, direction, cluster_id, name, back_name or name)
        if every_s is not None:
            outcomes = _follow(opened, asked, every_s, as_json=as_json, dry_run=dry_run)
        else:
            with opened() as link:
                outcomes = _plan(link, asked)
                if not as_json:
                    _show(outcomes)
                changes = sum(outcome.plan.change_count for outcome in outcomes if outcome.plan is not None)
                if changes and not dry_run:
                    if not yes:
                        confirm(f"Commit {changes} offsets?", yes=False)
                        outcomes = _plan(link, asked)  # the answer may have taken its time
                    _commit(link, outcomes, asked)
                    if not as_json:
                        _show_errors(outcomes)
            if as_json:
                write_json(_as_json(outcomes))
            elif not dry_run:
                click.echo(f"{sum(outcome.committed for outcome in outcomes)} offsets committed", err=True)
    if not outcomes or not all(outcome.is_clean for outcome in outcomes):
        raise click.exceptions.Exit(1)


def _asked(given: dict[str, Any]) -> _Asked:
    from rmq_store.bridge.offsets.plan import Rules

    if bool(given["moves"]) == given["all_groups"]:
        raise UsageError("name groups with -g, or take --all-groups")
    rules = Rules(
        from_start=given["uncommitted"] == "start",
        accept_missing=given["accept_missing"],
        force_back=given["force_back"],
        pass_letters=given["pass_letters"],
    )
    return _Asked(_groups(given["moves"]), given["all_groups"], rules, given["force"], given["ignore_waiting"])


def _opener(
    store: Store, connection: KafkaConnection, direction: str, cluster_id: str, name: str, back_name: str
) -> Opened:
    """Opens connections for one round: so an unavailable broker, or a new partition, needs no special care."""
    from rmq_store.bridge.offsets.links import kafka_to_store, store_to_kafka
    from rmq_store.bridge.positions.topics import check_mirror_name

    open_link = kafka_to_store if direction == "rmq" else store_to_kafka
    names = check_mirror_name(name), check_mirror_name(back_name)
    return functools.partial(open_link, store, connection, cluster_id, *names)


def _follow(opened: Opened, asked: _Asked, every_s: float, *, as_json: bool, dry_run: bool) -> Sequence[_Outcome]:
    """Run rounds; failures are reported, and tried again. Returns the outcomes of the last complete round."""
    outcomes: Sequence[_Outcome] = ()
    shown: object = None
    with stopped_by_signals() as stop:
        while True:
            try:
                with opened() as link:
                    outcomes = _plan(link, asked)
                    if not dry_run:
                        _commit(link, outcomes, asked)
            except KafkaUnavailableError as error:
                click.echo(f"rmq: {printable(str(error))}", err=True)
            else:
                if as_json:
                    write_json(_as_json(outcomes), one_line=True)
                elif (state := (_rows(outcomes), [outcome.error for outcome in outcomes])) != shown:
                    shown = state
                    _show(outcomes)
            if stop.wait(every_s):
                return outcomes


def _plan(link: Link, asked: _Asked) -> Sequence[_Outcome]:
    """One outcome for each group; with `--all-groups`, for those that have positions on mirrored topics."""
    from rmq_store.bridge.offsets.plan import plan_move

    outcomes = []
    groups = [(group, group) for group in sorted(link.source.groups())] if asked.all_groups else asked.groups
    for source_group, target_group in groups:
        outcome = _Outcome(source_group, target_group, None)
        try:
            outcome.plan = plan_move(
                link, source_group, target_group, asked.rules, force=asked.force, ignore_waiting=asked.ignore_waiting
            )
        except (KafkaUnavailableError, StoreFailedError):
            raise
        except StoreError as error:
            outcome.error = str(error)
        else:
            if not outcome.plan.moves:
                if asked.all_groups:
                    continue
                outcome.error = f"it has no position in {link.source.name} on a topic that this mirror copies"
        outcomes.append(outcome)
    return outcomes


def _groups(texts: Sequence[str]) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for text in texts:
        source, equals, target = text.rpartition("=")
        if not equals:
            source = target
        if not source or not target:
            raise UsageError(f"-g {text!r}: NAME or NAME=NAME is expected")
        if (other := found.setdefault(target, source)) != source:
            raise UsageError(f"groups {other!r} and {source!r} cannot both become {target!r}")
    return [(source, target) for target, source in found.items()]


def _commit(link: Link, outcomes: Sequence[_Outcome], asked: _Asked) -> None:
    from rmq_store.bridge.offsets.plan import apply_move

    for outcome in outcomes:
        if outcome.plan is None or outcome.error:
            continue
        try:
            outcome.committed = apply_move(link, outcome.plan, force=asked.force)
        except (KafkaUnavailableError, StoreFailedError):
            raise
        except StoreError as error:
            outcome.error = str(error)


def _show(outcomes: Sequence[_Outcome]) -> None:
    if not outcomes:
        click.echo("rmq: no group has positions on a topic that this mirror copies", err=True)
        return
    _show_errors(outcomes)
    rows = _rows(outcomes)
    if rows:
        write_table(_COLUMNS, rows, flexible=("GROUP", "TOPIC", "TARGET"))


def _show_errors(outcomes: Sequence[_Outcome]) -> None:
    for outcome in outcomes:
        if outcome.error:
            click.echo(f"rmq: group {printable(outcome.source_group)}: {printable(outcome.error)}", err=True)


def _rows(outcomes: Sequence[_Outcome]) -> list[tuple[Any, ...]]:
    return [
        (
            outcome.source_group, move.source.topic, move.source.queue_id, _dash(move.position), move.target.topic,
            _dash(move.old), _dash(move.new), move.redelivered, move.missing, move.ahead, _result(move),
        )
        for outcome in outcomes
        if outcome.plan is not None
        for move in outcome.plan.moves
    ]  # fmt: skip


def _result(move: Move) -> str:
    from rmq_store.bridge.offsets.translate import Stop

    text = move.status.value
    if move.redelivered and move.stop is Stop.OTHER:
        text += ", held up by others"
    if move.letters_passed:
        text += f", {move.letters_passed} letters passed"
    return text


def _as_json(outcomes: Sequence[_Outcome]) -> dict[str, Any]:
    return {
        "clean": bool(outcomes) and all(outcome.is_clean for outcome in outcomes),
        "groups": [
            {
                "group": outcome.source_group, "targetGroup": outcome.target_group, "error": outcome.error or None,
                "committed": outcome.committed, "waiting": outcome.plan.waiting_count if outcome.plan else 0,
                "queues": [_move_json(move) for move in outcome.plan.moves] if outcome.plan else [],
            }
            for outcome in outcomes
        ],
    }  # fmt: skip


def _move_json(move: Move) -> dict[str, Any]:
    return {
        "topic": move.source.topic, "queueId": move.source.queue_id, "position": move.position,
        "targetTopic": move.target.topic, "oldOffset": move.old, "newOffset": move.new,
        "redelivered": move.redelivered, "missing": move.missing, "ahead": move.ahead,
        "lettersPassed": move.letters_passed, "status": move.status.name.lower(),
        "heldUpBy": move.stop.value if move.stop is not None else None,
    }  # fmt: skip


def _dash(offset: int | None) -> int | str:
    return "-" if offset is None else offset
