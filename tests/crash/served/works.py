"""What clients ask of the server that is killed: each kind of request, and what it leaves in the store.

A life has `REQUESTS` requests of one kind. Each of them has an effect of its own, which can be counted in the store
afterwards: a message, an offset, a message that does not come again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rmq_store.protocol.wire.request_codes import RequestCode

if TYPE_CHECKING:
    from rmq_store import Store

REQUESTS: Final = 4
BATCH: Final = 3
HOUR_MS: Final = 3_600_000
INVISIBLE_MS: Final = 12 * HOUR_MS
LATER_MS: Final = 24 * HOUR_MS
"""After so long everything that is delayed is due, and nothing that was received is hidden."""

SENT, BATCHED, HALVES, PAID, REFUSED, FAILED, RECEIVED, READ, RECALLED = (
    "Sent", "Batched", "Halves", "Paid", "Refused", "Failed", "Received", "Read", "Recalled"
)  # fmt: skip
GROUP: Final = "readers"
PRODUCERS: Final = "payers"
COMMIT, ROLLBACK = 8, 12
OFFSET: Final = 7

Request = tuple[int, dict[str, object], bytes]


class Prepared(NamedTuple):
    """What the store has before a life: places of half messages and of messages, receipt handles, and recall handles of
    timers, by request.
    """

    commits: list[tuple[int, int]]
    rollbacks: list[tuple[int, int]]
    failed: list[int]
    handles: list[str]
    timers: list[str]


class Found(NamedTuple):
    """How often each request has its effect; and what else is wrong."""

    effects: list[int]
    wrong: list[str]


class Work(NamedTuple):
    """`once`: a repetition of a request that was carried out has no second effect. `again`: answered requests are
    repeated, too, and must be answered with success once more.
    """

    name: str
    once: bool
    request: Callable[[Prepared, int], Request]
    look: Callable[[Store], Found]
    again: bool = False


def prepare(store: Store) -> Prepared:
    """Make the topics, and what ends, send-backs, acknowledgements and recalls are about. The last message of
    `RECEIVED` is received, and nobody acknowledges it. Nobody recalls the last timer.
    """
    from rmq_store import Message
    from rmq_store.broker.metadata.groups import SubscriptionGroup

    for topic in (SENT, BATCHED, HALVES, PAID, REFUSED, FAILED, RECEIVED, RECALLED):
        store.create_topic(topic, queue_count=1)
    store.create_topic(READ, queue_count=REQUESTS)
    store.create_group(SubscriptionGroup(GROUP))

    def halves(topic: str) -> list[tuple[int, int]]:
        made = [
            store.transactions.prepare(Message(topic, body(number)), 0, PRODUCERS) for number in range(REQUESTS)
        ]  # fmt: skip
        return [(half.queue_offset, half.commit_log_offset) for half in made]

    failed = [store.send(Message(FAILED, body(number), queue_id=0)) for number in range(REQUESTS)]
    store.send_all([Message(RECEIVED, body(number), queue_id=0) for number in range(REQUESTS + 1)])
    store.send_all([Message(READ, b"a", queue_id=number) for number in range(REQUESTS) for _ in range(OFFSET)])
    received = store.pop.receive(GROUP, RECEIVED, REQUESTS + 1, INVISIBLE_MS, init_mode=_from_first())
    due = {"TIMER_DELIVER_MS": str(store.clock() + HOUR_MS)}
    timers = [
        store.send(Message(RECALLED, body(number), queue_id=0, properties=due)).recall_handle
        for number in range(REQUESTS + 1)
    ]
    handles = {one.row.column("body")[0].as_py(): one.receipt_handle for one in received}
    return Prepared(
        halves(PAID), halves(REFUSED), [sent.commit_log_offset for sent in failed],
        [handles[body(number)] for number in range(REQUESTS)], [str(handle) for handle in timers],
    )  # fmt: skip


def body(number: int, member: int = 0) -> bytes:
    """Long enough that a write has a middle."""
    return f"request {number}, member {member}. ".encode() * 20


def _from_first() -> Any:
    from rmq_store.broker.pop.pop_messages import ConsumeInitMode

    return ConsumeInitMode.MIN


# -- requests ---------------------------------------------------------------------------------------------------------


def _send(topic: str, number: int, properties: str = "") -> Request:
    fields = {
        "a": PRODUCERS, "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 4 if properties else 0, "g": 1, "h": 0,
        "i": properties, "j": 0, "k": "false", "m": "false",
    }  # fmt: skip
    return RequestCode.SEND_MESSAGE_V2, fields, body(number)


def _send_batch(made: Prepared, number: int) -> Request:
    _, fields, _ = _send(BATCHED, number)
    members = b"".join(_member(body(number, member), f"{number:016X}{member:016X}") for member in range(BATCH))
    return RequestCode.SEND_BATCH_MESSAGE, fields | {"m": "true"}, members


def _member(content: bytes, unique_key: str) -> bytes:
    """As clients send it: only messages with a unique key are stored without an object for each of them."""
    properties = f"UNIQ_KEY\x01{unique_key}\x02".encode()
    size = 4 * 5 + len(content) + 2 + len(properties)
    head = size.to_bytes(4, "big") + bytes(12) + len(content).to_bytes(4, "big")
    return head + content + len(properties).to_bytes(2, "big") + properties


def _send_back(prepared: Prepared, number: int) -> Request:
    fields = {"offset": prepared.failed[number], "group": GROUP, "delayLevel": 3, "originTopic": FAILED}
    return RequestCode.CONSUMER_SEND_MSG_BACK, fields, b""


def _end(places: list[tuple[int, int]], number: int, outcome: int) -> Request:
    queue_offset, commit_log_offset = places[number]
    fields = {
        "producerGroup": PRODUCERS, "tranStateTableOffset": queue_offset, "commitLogOffset": commit_log_offset,
        "commitOrRollback": outcome, "msgId": "",
    }  # fmt: skip
    return RequestCode.END_TRANSACTION, fields, b""


def _commit_offset(_: Prepared, number: int) -> Request:
    fields = {"consumerGroup": GROUP, "topic": READ, "queueId": number, "commitOffset": OFFSET}
    return RequestCode.UPDATE_CONSUMER_OFFSET, fields, b""


def _ack(prepared: Prepared, number: int) -> Request:
    fields = {
        "consumerGroup": GROUP, "topic": RECEIVED, "queueId": 0, "extraInfo": prepared.handles[number],
        "offset": number,
    }  # fmt: skip
    return RequestCode.ACK_MESSAGE, fields, b""


def _recall(prepared: Prepared, number: int) -> Request:
    fields = {"topic": RECALLED, "recallHandle": prepared.timers[number], "producerGroup": PRODUCERS}
    return RequestCode.RECALL_MESSAGE, fields, b""


# -- effects ----------------------------------------------------------------------------------------------------------


def _bodies(store: Store, topic: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    if topic in store.topics():
        for queue_id, ends in store.queue_ranges(topic).items():
            for batch in store.read(topic, queue_id, *ends, columns=["body"]):
                found.update(batch.column("body").to_pylist())
    return found


def _pending(store: Store) -> Counter[tuple[str, bytes]]:
    messages = [store.transactions.half_message(half) for half in store.transactions.pending()]
    return Counter((message.properties["REAL_TOPIC"], message.body) for message in messages)


def _messages(topic: str, store: Store) -> Found:
    found = _bodies(store, topic)
    known = {body(number, member) for number in range(REQUESTS) for member in range(BATCH)}
    return Found(_by_request(found), [f"{topic} has {other[:40]!r}" for other in found if other not in known])


def _batches(store: Store) -> Found:
    found, wrong = _messages(BATCHED, store)
    members = _bodies(store, BATCHED)
    for number, count in enumerate(found):
        counts = [members[body(number, member)] for member in range(BATCH)]
        if counts != [count] * BATCH:
            wrong.append(f"batch {number}: its messages are there {counts} times")
    return Found(found, wrong)


def _halves(store: Store) -> Found:
    pending = _pending(store)
    wrong = [f"{HALVES} has messages"] if _bodies(store, HALVES) else []
    return Found([pending[HALVES, body(number)] for number in range(REQUESTS)], wrong)


def _sent_back(store: Store) -> Found:
    store.schedule.deliver_due()
    return _messages(f"%RETRY%{GROUP}", store)


def _committed(store: Store) -> Found:
    """A transaction that was not committed waits still."""
    found, wrong = _messages(PAID, store)
    pending = _pending(store)
    for number, count in enumerate(found):
        if pending[PAID, body(number)] != (count == 0):
            wrong.append(f"transaction {number}: {count} messages, {pending[PAID, body(number)]} half messages")
    return Found(found, wrong)


def _rolled_back(store: Store) -> Found:
    pending = _pending(store)
    wrong = [f"{REFUSED} has messages"] if _bodies(store, REFUSED) else []
    return Found([1 - pending[REFUSED, body(number)] for number in range(REQUESTS)], wrong)


def _offsets(store: Store) -> Found:
    found = store.committed_offsets(GROUP)
    offsets = [found.get((READ, number), 0) for number in range(REQUESTS)]
    wrong = [f"offset {one}" for one in offsets if one not in (0, OFFSET)]
    return Found([int(one == OFFSET) for one in offsets], wrong)


def _acknowledged(store: Store) -> Found:
    """What was received and not acknowledged comes again, each message once."""
    again: Counter[bytes] = Counter()
    while received := store.pop.receive(GROUP, RECEIVED, REQUESTS + 1, INVISIBLE_MS):
        again.update(one.row.column("body")[0].as_py() for one in received)
    wrong = [] if again[body(REQUESTS)] == 1 else ["a message that nobody has acknowledged does not come again"]
    wrong += ["a message comes twice at once"] if max(again.values(), default=0) > 1 else []
    return Found([1 - again[body(number)] for number in range(REQUESTS)], wrong)


def _recalled(store: Store) -> Found:
    """All timers are due, and those that were not taken back are delivered once."""
    store.schedule.deliver_due()
    delivered = _bodies(store, RECALLED)
    wrong = [] if delivered[body(REQUESTS)] == 1 else ["a timer that nobody has recalled is not delivered"]
    wrong += ["a timer is delivered twice"] if max(delivered.values(), default=0) > 1 else []
    return Found([1 - delivered[body(number)] for number in range(REQUESTS)], wrong)


def _by_request(found: Counter[bytes]) -> list[int]:
    return [found[body(number)] for number in range(REQUESTS)]


def _half_properties() -> str:
    pairs: Iterable[tuple[str, str]] = (("TRAN_MSG", "true"), ("PGROUP", PRODUCERS))
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs)


WORKS: Final = (
    Work("a send", False, lambda _, number: _send(SENT, number), lambda store: _messages(SENT, store)),
    Work("a batch", False, _send_batch, _batches),
    Work("a half message", False, lambda _, number: _send(HALVES, number, _half_properties()), _halves),
    Work("a send-back", False, _send_back, _sent_back),
    Work("a commit", True, lambda made, number: _end(made.commits, number, COMMIT), _committed),
    Work("a rollback", True, lambda made, number: _end(made.rollbacks, number, ROLLBACK), _rolled_back),
    Work("an offset", True, _commit_offset, _offsets),
    Work("an acknowledgement", True, _ack, _acknowledged),
    Work("a recall", True, _recall, _recalled, again=True),
)
