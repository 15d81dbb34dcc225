"""Resends (H09, H10): the stubs that this round looks at, a decision for each, and its consequences.

A page is read without locks. So a stub is claimed only if the decision still holds when its row is locked: it is due,
unconfirmed, and no other sender has it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import sqlalchemy as sa

from rmq_store.client import MessageQueue
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.manual_list import ManualEntry
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.transact import read, transact
from rmq_store.reliable.outbox.claims import (
    CLAIM_BYTES_MAX,
    claim_resends,
    count_again,
    illegal_entry,
    put_on_manual_list,
)
from rmq_store.reliable.outbox.delays import without_delay
from rmq_store.reliable.outbox.sending_rules import SendingRules
from rmq_store.reliable.outbox.stub import Confirmation, confirm_all, settle
from rmq_store.reliable.relay.claim_sender import ClaimSender
from rmq_store.reliable.relay.inboxes import Inboxes
from rmq_store.reliable.relay.looks import find_looks, save_progress
from rmq_store.reliable.relay.relay_report import RelayReport
from rmq_store.reliable.relay.resend_page import Candidate, due_page, fault_of_sent
from rmq_store.reliable.relay.resend_rule import Action, decide

_MANUAL: Final = {
    Action.MAXIMUM: manual_list.MAXIMUM,
    Action.ORDERED: manual_list.ORDERED,
    Action.STUCK: manual_list.STUCK,
}

COUNT_AGAIN_EVERY_MS: Final = 60_000


class Resending:
    """The resends of one relay."""

    def __init__(
        self,
        inboxes: Inboxes,
        tables: Tables,
        rules: SendingRules,
        sender: ClaimSender,
        *,
        end_of_queue: Callable[[MessageQueue], int | None],
        resend_out_of_order: bool,
        stuck_after_ms: int,
        clock: Callable[[], int],
        page_rows: int,
    ) -> None:
        self._inboxes = inboxes
        self._engine = inboxes.stubs
        self._tables = tables
        self._rules = rules
        self._sender = sender
        self._end_of_queue = end_of_queue
        self._out_of_order = resend_out_of_order
        self._stuck_after_ms = stuck_after_ms
        self._clock = clock
        self._page_rows = page_rows
        self._counted_ms: int | None = None

    def run(self, report: RelayReport, stop: threading.Event, *, dry_run: bool) -> None:
        """Look at the stubs whose turn it is (`looks`), and resend those that are lost. `dry_run` only reads."""
        now_ms = self._clock()
        if not dry_run:
            self._count_again(now_ms, report)
        looks = read(self._engine, lambda connection: find_looks(connection, self._tables, self._rules, now_ms))
        report.has_more = report.has_more or looks.is_full
        rows, done = [*looks.new, *looks.again], 0
        while done < len(rows) and not stop.is_set():
            page = rows[done : done + self._page_rows]
            self._look(page, looks.pending, now_ms, report, dry_run=dry_run)
            done += len(page)
        progress = looks.after(done)
        if not dry_run and progress != looks.progress:
            transact(self._engine, lambda connection: save_progress(connection, self._tables, progress))

    def _count_again(self, now_ms: int, report: RelayReport) -> None:
        """It reads every message whose time is far ahead, and clocks are seldom set back."""
        if self._counted_ms is None or not 0 <= now_ms - self._counted_ms < COUNT_AGAIN_EVERY_MS:
            report.counted_again += transact(
                self._engine, lambda connection: count_again(connection, self._tables, self._rules, now_ms)
            )
            self._counted_ms = now_ms

    def _look(
        self,
        rows: Sequence[sa.Row[Any]],
        pending: Mapping[str, Sequence[str]],
        now_ms: int,
        report: RelayReport,
        *,
        dry_run: bool,
    ) -> None:
        faults = {row.seq: fault for row in rows if (fault := fault_of_sent(self._tables, row, now_ms)) is not None}
        readable = [row for row in rows if row.seq not in faults]
        page = due_page(self._inboxes, self._tables, readable, pending, self._end_of_queue)
        illegal = {
            row.seq: illegal_entry(self._tables, row.seq, row.message_id, faults[row.seq], now_ms)
            for row in rows
            if row.seq in faults
        }
        self._decide(page, illegal, now_ms, report, dry_run=dry_run)

    def _decide(
        self,
        page: Sequence[Candidate],
        illegal: Mapping[int, ManualEntry],
        now_ms: int,
        report: RelayReport,
        *,
        dry_run: bool,
    ) -> None:
        by_action: dict[Action, list[Candidate]] = {}
        done: dict[str, list[str]] = {}
        for each in page:
            decision = decide(
                each.stub,
                each.groups,
                now_ms,
                max_send_count=self._rules.max_send_count,
                resend_out_of_order=self._out_of_order,
                stuck_after_ms=self._stuck_after_ms,
            )
            by_action.setdefault(decision.action, []).append(each)
            for group in decision.done_groups:
                done.setdefault(group, []).append(each.message_id)
        entries = {each.seq: _entry(each, action, now_ms) for action in _MANUAL for each in by_action.get(action, ())}
        entries.update(illegal)
        settled = [each for each in by_action.get(Action.CONFIRM, ()) if not each.groups]
        again = by_action.get(Action.RESEND, [])
        for action, waiting in by_action.items():
            if action not in (*_MANUAL, Action.RESEND, Action.CONFIRM):
                report.waiting[action.value] += len(waiting)
        if dry_run:
            report.resent += len(again)
            report.confirmed += sum(map(len, done.values()))
            report.manual.update(entry.reason for entry in entries.values())
            return
        for group, ids in sorted(done.items()):
            self._confirm(group, ids, report)
        if settled:
            self._settle(settled, now_ms, report)
        self._give_to_people(entries, report)
        self._send_again(again, report)

    def _confirm(self, group: str, ids: Sequence[str], report: RelayReport) -> None:
        answers = transact(
            self._engine, lambda connection: confirm_all(connection, self._tables, group, ids, self._clock())
        )
        report.confirmed += sum(answer is Confirmation.CONFIRMED for answer in answers.values())

    def _settle(self, settled: Sequence[Candidate], now_ms: int, report: RelayReport) -> None:
        """No group is left that must confirm, and still it is unconfirmed: somebody has changed rows by hand."""
        nobody = "no group is named for it, so nobody would confirm it"
        entries = {each.seq: illegal_entry(self._tables, each.seq, each.message_id, nobody, now_ms) for each in settled}
        ids = {each.message_id: each.seq for each in settled}
        confirmed = transact(self._engine, lambda connection: settle(connection, self._tables, sorted(ids)))
        report.confirmed += len(confirmed)
        left = {seq: entry for seq, entry in entries.items() if seq not in {ids[each] for each in confirmed}}
        self._give_to_people(left, report)

    def _give_to_people(self, entries: Mapping[int, ManualEntry], report: RelayReport) -> None:
        if entries:
            report.give_up(
                transact(
                    self._engine,
                    lambda connection: put_on_manual_list(
                        connection, self._tables, self._rules, entries, self._clock()
                    ),
                )
            )

    def _send_again(self, again: Sequence[Candidate], report: RelayReport) -> None:
        for some in _in_memory(again):
            seqs = [each.seq for each in some if each.topic not in self._sender.failed_topics]
            claim = transact(
                self._engine,
                lambda connection, seqs=seqs: claim_resends(  # type: ignore[misc]
                    connection, self._tables, self._rules, seqs, self._clock()
                ),
            )
            report.give_up(claim.given_up)
            ready = [replace(each, message=without_delay(each.message)) for each in claim.claimed]
            report.resent += self._sender.send(ready, report)


def _in_memory(again: Sequence[Candidate]) -> Iterator[Sequence[Candidate]]:
    """Groups of candidates that are claimed together: as many as fit in memory, and suspects alone."""
    together: list[Candidate] = []
    size = 0
    for each in again:
        if together and (each.is_suspect or size + each.body_bytes > CLAIM_BYTES_MAX):
            yield together
            together, size = [], 0
        if each.is_suspect:
            yield [each]
            continue
        together.append(each)
        size += each.body_bytes
    if together:
        yield together


def _entry(each: Candidate, action: Action, now_ms: int) -> ManualEntry:
    groups = ", ".join(group for group, state in each.groups.items() if not state.is_done)
    sent = _time(each.stub.sent_ms)
    detail = {
        Action.MAXIMUM: f"sent {each.stub.send_count} times, the last time {sent}, and not confirmed by {groups}",
        Action.ORDERED: f"not confirmed by {groups}: a resend comes behind later messages of its sharding key",
        Action.STUCK: f"sent {sent}; since then {groups} has not come to it, or cannot be asked",
    }[action]
    return ManualEntry(each.message_id, manual_list.NO_GROUP, _MANUAL[action], detail, now_ms)


def _time(time_ms: int) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_ms / 1_000))
    except (ValueError, OverflowError, OSError):  # outside of the calendar
        return f"{time_ms} ms"
