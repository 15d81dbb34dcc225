"""Resends (H09, H10): pages of due stubs, a decision for each, and its consequences.

A page is read without locks. So a stub is claimed only if the decision still holds when its row is locked: it is due,
unconfirmed, and no other sender has it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from rmq_store.client import MessageQueue
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.manual_list import ManualEntry
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.transact import transact
from rmq_store.reliable.outbox.claims import CLAIM_BYTES_MAX, claim_resends, count_again, put_on_manual_list
from rmq_store.reliable.outbox.delays import without_delay
from rmq_store.reliable.outbox.sending_rules import SendingRules
from rmq_store.reliable.outbox.stub import Confirmation, confirm_all
from rmq_store.reliable.relay.claim_sender import ClaimSender
from rmq_store.reliable.relay.inboxes import Inboxes
from rmq_store.reliable.relay.relay_report import RelayReport
from rmq_store.reliable.relay.resend_page import Candidate, due_page
from rmq_store.reliable.relay.resend_rule import Action, decide

_MANUAL: Final = {
    Action.MAXIMUM: manual_list.MAXIMUM,
    Action.ORDERED: manual_list.ORDERED,
    Action.STUCK: manual_list.STUCK,
}


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

    def run(self, report: RelayReport, stop: threading.Event, *, dry_run: bool) -> None:
        """Process all stubs that are due, once. `dry_run` only reads."""
        if not dry_run:
            report.counted_again += transact(
                self._engine,
                lambda connection: count_again(connection, self._tables, self._rules, self._clock()),
            )
        now_ms = self._clock()
        after = (0, 0)
        while not stop.is_set():
            page = due_page(
                self._inboxes, self._tables, self._rules, now_ms, after, self._page_rows, self._end_of_queue
            )
            if page:
                after = page[-1].place
                self._decide(page, now_ms, report, dry_run=dry_run)
            if len(page) < self._page_rows:
                return

    def _decide(
        self,
        page: Sequence[Candidate],
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
        entries = [_entry(each, action, now_ms) for action in _MANUAL for each in by_action.get(action, ())]
        again = by_action.get(Action.RESEND, [])
        for action, waiting in by_action.items():
            if action not in (*_MANUAL, Action.RESEND, Action.CONFIRM):
                report.waiting[action.value] += len(waiting)
        if dry_run:
            report.resent += len(again)
            report.confirmed += sum(map(len, done.values()))
            report.manual.update(entry.reason for entry in entries)
            return
        for group, ids in sorted(done.items()):
            self._confirm(group, ids, report)
        self._give_to_people(entries, report)
        self._send_again(again, report)

    def _confirm(self, group: str, ids: Sequence[str], report: RelayReport) -> None:
        answers = transact(
            self._engine, lambda connection: confirm_all(connection, self._tables, group, ids, self._clock())
        )
        report.confirmed += sum(answer is Confirmation.CONFIRMED for answer in answers.values())

    def _give_to_people(self, entries: Sequence[ManualEntry], report: RelayReport) -> None:
        if entries:
            listed = transact(
                self._engine,
                lambda connection: put_on_manual_list(connection, self._tables, self._rules, entries, self._clock()),
            )
            report.manual.update(entry.reason for entry in entries if entry.message_id in set(listed))

    def _send_again(self, again: Sequence[Candidate], report: RelayReport) -> None:
        for some in _in_memory(again):
            seqs = [each.seq for each in some if each.topic not in self._sender.failed_topics]
            claimed = transact(
                self._engine,
                lambda connection, seqs=seqs: claim_resends(  # type: ignore[misc]
                    connection, self._tables, self._rules, seqs, self._clock()
                ),
            )
            ready = [replace(each, message=without_delay(each.message)) for each in claimed]
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
    sent = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(each.stub.sent_ms / 1_000))
    detail = {
        Action.MAXIMUM: f"sent {each.stub.send_count} times, the last time {sent}, and not confirmed by {groups}",
        Action.ORDERED: f"not confirmed by {groups}: a resend comes behind later messages of its sharding key",
        Action.STUCK: f"sent {sent}; since then {groups} has not come to it, or cannot be asked",
    }[action]
    return ManualEntry(each.message_id, manual_list.NO_GROUP, _MANUAL[action], detail, now_ms)
