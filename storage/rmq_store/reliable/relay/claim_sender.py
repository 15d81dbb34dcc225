"""Sends the messages that a relay has claimed, marks them, and remembers the topics that fail."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from rmq_store.client import Producer
from rmq_store.reliable.database.manual_list import ManualEntry
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.transact import transact
from rmq_store.reliable.outbox.claim_marks import give_back, mark_sent
from rmq_store.reliable.outbox.claims import illegal_entry, list_claimed
from rmq_store.reliable.outbox.sending import Claimed, NotSent, Sent, breaks_a_rule, send_claimed
from rmq_store.reliable.outbox.sending_rules import SendingRules
from rmq_store.reliable.relay.relay_report import RelayReport

_LOG = logging.getLogger(__name__)


class ClaimSender:
    """`failed_topics` of the round: a topic whose brokers do not answer must not hold up the others, so the round
    claims no more of its messages. `silent_topics`: none of their messages could be sent in the last round that tried,
    so the next one tries a few first, and not a page that it would have to give back. A message that is refused itself
    goes to the manual list: later tries would end in the same way.
    """

    def __init__(
        self,
        producer: Producer,
        engine: sa.Engine,
        tables: Tables,
        rules: SendingRules,
        clock: Callable[[], int],
    ) -> None:
        self._producer = producer
        self._engine = engine
        self._tables = tables
        self._rules = rules
        self._clock = clock
        self._streaks: Counter[str] = Counter()
        self.failed_topics: set[str] = set()
        self.silent_topics: set[str] = set()

    def begin_round(self) -> None:
        """Forget which topics failed: each may be tried again."""
        self.failed_topics = set()

    def end_round(self, report: RelayReport) -> None:
        """Count failures of a topic in a row. If anything was sent, topics that did not fail now are forgotten."""
        if report.sent + report.resent:
            self._streaks = Counter({topic: self._streaks[topic] for topic in self.failed_topics})
        self._streaks.update(self.failed_topics)

    def send(self, claimed: Sequence[Claimed], report: RelayReport) -> int:
        """Send and mark; returns the number of sent messages. Known results are marked also after an error."""
        if not claimed:
            return 0
        outcomes: list[Sent | NotSent] = []
        try:
            for some in send_claimed(self._producer, claimed, self._clock):
                outcomes += some
        finally:
            sent = [each for each in outcomes if isinstance(each, Sent)]
            not_sent = [each for each in outcomes if isinstance(each, NotSent)]
            self._learn(sent, not_sent, report)
            report.give_up(transact(self._engine, lambda connection: self._mark(connection, sent, not_sent)) or ())
        return len(sent)

    def _mark(
        self, connection: sa.Connection, sent: Sequence[Sent], not_sent: Sequence[NotSent]
    ) -> Sequence[ManualEntry]:
        """Returns the entries of the messages that were refused."""
        now_ms = self._clock()
        mark_sent(connection, self._tables, sent, self._rules.backoff)
        refused = {
            each.claimed.seq: illegal_entry(
                self._tables, each.claimed.seq, each.claimed.message_id, f"refused: {each.error}", now_ms
            )
            for each in not_sent
            if each.error is not None and breaks_a_rule(each.error)
        }
        tokens = {each.claimed.claim_token for each in not_sent}
        listed = list_claimed(connection, self._tables, refused, tokens)
        left = [each for each in not_sent if each.claimed.seq not in refused]
        give_back(connection, self._tables, left, self._rules.backoff, now_ms, self._streaks)
        return listed

    def _learn(self, sent: Sequence[Sent], not_sent: Sequence[NotSent], report: RelayReport) -> None:
        report.failed += len(not_sent)
        # A topic fails where its brokers do; a message that is to blame itself says nothing of the others.
        errors: dict[str, str] = {}
        for each in not_sent:
            if each.error is not None and not breaks_a_rule(each.error):
                errors.setdefault(each.claimed.message.topic, str(each.error))
        for topic, error in errors.items():
            _LOG.warning("messages of topic %s could not be sent and are tried again later: %s", topic, error)
        self.failed_topics |= errors.keys()
        self.silent_topics |= errors.keys()
        self.silent_topics -= {each.claimed.message.topic for each in sent}
