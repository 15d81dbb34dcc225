"""The rules of a send-back as pure functions: where a failed message goes, what its copy says, what gives way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store import SubscriptionGroup, UsageError
from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.rules import failure
from rmq_store.broker.rules.resend import resent_hop, resent_properties
from rmq_store.broker.rules.send_back import Hop, SendBackRules, Source, copied_properties, given_properties, origin
from rmq_store.format.properties.property_string import PROPERTIES_BYTES_MAX, encode_properties
from rmq_store.format.text.delay_levels import parse_delay_levels

LEVELS_MS = parse_delay_levels(StoreConfig().message_delay_level)
GAPS_S = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
SOURCE = Source("TopicJ", 3, 77, "0A" * 16)


def rules(maximum: int = 16, levels_ms: tuple[int, ...] = LEVELS_MS) -> SendBackRules:
    return SendBackRules("CG1", 1, maximum, levels_ms)


# -- where: AbstractSendMessageProcessor#consumerSendMsgBack ----------------------------------------------------------


@pytest.mark.statement("B06", "B07", "C13")
def test_retry_n_waits_at_level_n_plus_2_and_from_the_16th_on_for_2_hours() -> None:
    """B06: both articles print this table."""
    hops = [rules(maximum=100).hop(times, 0) for times in range(20)]
    assert [hop.delay_ms // 1000 for hop in hops] == GAPS_S + [7200] * 4
    assert [hop.delay_level for hop in hops] == [*range(3, 19), 18, 18, 18, 18]
    assert all(hop.topic == "SCHEDULE_TOPIC_XXXX" and hop.queue_id == hop.delay_level - 1 for hop in hops)


@pytest.mark.statement("B08")
def test_the_16_gaps_of_the_default_last_4_h_45_min_40_s_and_the_17th_failure_is_the_last() -> None:
    """B08: 17140 s; the article says about 4 h 46 min."""
    default = SendBackRules.of(SubscriptionGroup("CG1"), None, LEVELS_MS)
    hops = [default.hop(times, 0) for times in range(17)]
    assert [hop.is_dead for hop in hops] == [False] * 16 + [True]
    assert sum(hop.delay_ms for hop in hops) == 17_140_000


@pytest.mark.statement("B05", "B09")
@pytest.mark.parametrize("maximum", range(6))
def test_maximum_n_allows_n_retries_with_the_same_gaps_cut_off(maximum: int) -> None:
    """B05: n retries are n + 1 deliveries; the dead letter says n + 1."""
    hops = [rules(maximum).hop(times, 0) for times in range(maximum + 1)]
    assert [hop.delay_ms // 1000 for hop in hops[:-1]] == GAPS_S[:maximum]
    assert hops[-1] == Hop("%DLQ%CG1", 0, 0, 0, maximum + 1, True)


@pytest.mark.parametrize("maximum", [0, -1, -100])
def test_a_maximum_of_0_or_less_makes_the_first_failure_the_last(maximum: int) -> None:
    """AbstractSendMessageProcessor compares reconsumeTimes >= maximum, whatever the sign."""
    assert rules(maximum).hop(0, 0).is_dead
    assert rules(maximum).hop(0, 5).is_dead


def test_a_level_below_0_is_the_way_to_the_dead_letters_at_any_count() -> None:
    """ConsumeConcurrentlyContext: delayLevelWhenNextConsume -1."""
    assert rules().hop(0, -1) == Hop("%DLQ%CG1", 0, 0, 0, 1, True)
    assert rules().hop(7, -5).reconsume_times == 8


@pytest.mark.statement("C02")
@pytest.mark.parametrize(("asked", "level"), [(1, 1), (2, 2), (18, 18), (19, 18), (25, 18), (2**31 - 1, 18)])
def test_a_level_above_0_is_the_consumers_choice_clipped_to_the_table(asked: int, level: int) -> None:
    """HookUtils#transformDelayLevelMessage: DELAY itself is clipped, as level 25 of the golden store."""
    hop = rules().hop(4, asked)
    assert hop == Hop("SCHEDULE_TOPIC_XXXX", level - 1, level, LEVELS_MS[level - 1], 5, False)


@pytest.mark.statement("C07")
def test_a_table_of_its_own_changes_the_gaps_of_retries_too() -> None:
    """C13: the gaps follow from the configured levels."""
    short = rules(levels_ms=(1000, 2000))
    assert [short.hop(times, 0)[:4] for times in (0, 5)] == [("SCHEDULE_TOPIC_XXXX", 1, 2, 2000)] * 2


def test_counts_at_the_ends_of_32_bits_stay_32_bits() -> None:
    """A record with a negative count gets level 3 + count: without one it is not delayed (HookUtils)."""
    assert rules().hop(2**31 - 1, 0).reconsume_times == 2**31 - 1
    assert rules().hop(-3, 0) == Hop("%RETRY%CG1", None, 0, 0, -2, False)
    assert rules().hop(-5, 0) == Hop("%RETRY%CG1", None, -2, 0, -4, False)


# -- what the copy says: AbstractSendMessageProcessor#consumerSendMsgBack ---------------------------------------------


@pytest.mark.statement("C03", "C04")
def test_the_first_copy_names_its_origin_the_second_keeps_it() -> None:
    own = {"UNIQ_KEY": "u", "KEYS": "k", "TAGS": "TagA", "WAIT": "true", "mine": "x"}
    first = copied_properties(own, SOURCE, rules().hop(0, 0), "CG1", 0)
    assert first == own | {
        "RETRY_TOPIC": "TopicJ", "WAIT": "false", "DELAY": "3", "ORIGIN_MESSAGE_ID": "0A" * 16,
        "REAL_TOPIC": "%RETRY%CG1", "REAL_QID": "0",
    }  # fmt: skip
    second = copied_properties(first, Source("%RETRY%CG1", 0, 5, "0B" * 16), rules().hop(1, 0), "CG1", 2)
    assert second == first | {"DELAY": "4", "REAL_QID": "2"}


def test_a_dead_letter_keeps_a_stale_real_topic_and_says_delay_0() -> None:
    """consumerSendMsgBack: a dead letter has DELAY 0."""
    own = {"RETRY_TOPIC": "TopicJ", "DELAY": "4", "REAL_TOPIC": "%RETRY%CG1", "REAL_QID": "0", "ORIGIN_MESSAGE_ID": "o"}
    dead = copied_properties(own, SOURCE, rules(0).hop(2, 0), "CG1", 0)
    assert dead == own | {"DELAY": "0", "WAIT": "false"}


@pytest.mark.parametrize("blank", ["", " ", "\t"])
def test_a_blank_origin_id_is_none(blank: str) -> None:
    """UtilAll#isBlank."""
    copied = copied_properties({"ORIGIN_MESSAGE_ID": blank}, SOURCE, rules().hop(0, 0), "CG1", 0)
    assert copied["ORIGIN_MESSAGE_ID"] == SOURCE.offset_msg_id


def test_a_delay_level_takes_the_place_of_what_the_timer_was_asked_for() -> None:
    """HookUtils#checkIfTimerMessage clears them when DELAY is above 0, and leaves them otherwise."""
    own = {"TIMER_DELIVER_MS": "1", "TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "3", "TIMER_OUT_MS": "4"}
    parked = copied_properties(own, SOURCE, rules().hop(0, 0), "CG1", 0)
    assert own.keys() & parked.keys() == {"TIMER_OUT_MS"}
    assert own.items() <= copied_properties(own, SOURCE, rules(0).hop(0, 0), "CG1", 0).items()


# -- SEND to the retry topic: SendMessageProcessor#handleRetryAndDLQ ---------------------------------------------------


def test_a_client_that_counts_the_failure_itself_is_dead_above_the_maximum_an_older_one_at_it() -> None:
    """Observed with maximum 2: the last of three deliveries ends in the dead letters in both."""
    new = [resent_hop("CG1", times, 2, LEVELS_MS, n_plus_one=True).is_dead for times in (1, 2, 3)]
    old = [resent_hop("CG1", times, 2, LEVELS_MS, n_plus_one=False).is_dead for times in (0, 1, 2)]
    assert new == old == [False, False, True]


def test_a_message_sent_to_retry_waits_at_level_3_plus_its_retries_and_a_dead_letter_never_waits() -> None:
    """4.x parked the dead letter once more; 5.x says DELAY -1."""
    assert resent_hop("CG1", 3, 16, LEVELS_MS, n_plus_one=True)[:4] == ("SCHEDULE_TOPIC_XXXX", 4, 5, 60_000)
    assert resent_hop("CG1", 3, 16, LEVELS_MS, n_plus_one=False)[:4] == ("SCHEDULE_TOPIC_XXXX", 5, 6, 120_000)
    dead = resent_hop("CG1", 3, 2, LEVELS_MS, n_plus_one=True)
    assert dead == Hop("%DLQ%CG1", 0, -1, 0, 3, True)
    own = {"UNIQ_KEY": "u", "TRAN_MSG": "true", "DELAY": "5"}
    assert resent_properties(own, "FifoTopic", dead, "CG1", 0, 2) == {
        "UNIQ_KEY": "u", "DELAY": "-1", "RETRY_TOPIC": "FifoTopic", "ORIGIN_MESSAGE_ID": "u", "RECONSUME_TIME": "3",
        "MAX_RECONSUME_TIMES": "2",
    }  # fmt: skip


# -- reasons ----------------------------------------------------------------------------------------------------------


def raise_at_depth(depth: int) -> None:
    if depth:
        raise_at_depth(depth - 1)
    raise LookupError("no such order")


def reasons_of(depth: int, now_ms: int = 5) -> dict[str, str]:
    try:
        raise_at_depth(depth)
    except LookupError as error:
        return failure.failure_properties(error, now_ms=now_ms, query_id="q", batch_id=0)
    raise AssertionError


def test_an_exception_says_class_message_time_and_a_hash_of_its_way() -> None:
    reasons = reasons_of(1)
    assert {name: value for name, value in reasons.items() if name != failure.STACK_HASH} == {
        failure.ERROR_CLASS: "LookupError", failure.ERROR_MESSAGE: "no such order", failure.QUERY_ID: "q",
        failure.BATCH_ID: "0", failure.FIRST_FAILURE_MS: "5", failure.LAST_FAILURE_MS: "5",
    }  # fmt: skip
    assert len(reasons[failure.STACK_HASH]) == 16
    assert reasons_of(1, 9)[failure.STACK_HASH] == reasons[failure.STACK_HASH] != reasons_of(2)[failure.STACK_HASH]


def test_an_exception_without_text_has_no_message_and_a_long_one_is_cut() -> None:
    assert failure.ERROR_MESSAGE not in failure.failure_properties(ValueError(), now_ms=1)
    long = failure.failure_properties(ValueError("x" * 10_000), now_ms=1)[failure.ERROR_MESSAGE]
    assert len(long) == failure.ERROR_MESSAGE_CHARACTERS_MAX


def test_what_a_property_cannot_hold_is_replaced_not_refused() -> None:
    given_ones = {failure.ERROR_MESSAGE: "a\x01b\x02c\ud800", failure.ERROR_CLASS: ""}
    checked = given_properties(given_ones)
    assert checked == {failure.ERROR_MESSAGE: "a\ufffdb\ufffdc?"}
    encode_properties(checked)


@pytest.mark.parametrize("name", ["DELAY", "RETRY_TOPIC", "UNIQ_KEY", "KEYS", failure.REPLAYS, failure.DEAD_LETTER])
def test_what_belongs_to_the_broker_or_makes_the_message_cannot_be_given(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        given_properties({name: "x"})


@pytest.mark.parametrize("name", ["", "a\x01", "\x02"])
def test_what_is_no_name_cannot_be_given(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name"):
        given_properties({name: "x"})


def test_first_failure_and_origin_stay_class_and_last_failure_follow() -> None:
    own = {failure.FIRST_FAILURE_MS: "1", failure.LAST_FAILURE_MS: "1", failure.ORIGIN_TOPIC: "T", "RETRY_TOPIC": "T"}
    new = {failure.FIRST_FAILURE_MS: "2", failure.LAST_FAILURE_MS: "2", failure.ORIGIN_TOPIC: "U"}
    assert failure.with_reasons(own, new, 1000) == own | {failure.LAST_FAILURE_MS: "2"}
    assert origin(own, SOURCE) == {}
    assert origin({}, SOURCE) == {
        failure.ORIGIN_TOPIC: "TopicJ", failure.ORIGIN_QUEUE_ID: "3", failure.ORIGIN_QUEUE_OFFSET: "77",
    }  # fmt: skip


def test_the_message_is_cut_first_then_reasons_go_and_the_messages_own_properties_never() -> None:
    own = {"KEYS": "k" * 50}
    given_ones = {failure.ERROR_CLASS: "E", failure.ERROR_MESSAGE: "é" * 50, failure.STACK_HASH: "s"}
    whole = failure.size_bytes(own | given_ones)
    cut = failure.with_reasons(own, given_ones, whole - 11)
    assert cut == own | given_ones | {failure.ERROR_MESSAGE: "é" * 44}
    without = failure.with_reasons(own, given_ones, failure.size_bytes(own) + 25)
    assert without == own | {failure.ERROR_CLASS: "E"}
    assert failure.with_reasons(own, given_ones, failure.size_bytes(own)) == own
    assert failure.with_reasons(own, given_ones, failure.size_bytes(own) - 1) is None


def test_reasons_of_an_earlier_failure_give_way_too() -> None:
    """They filled the string to its end; the next hop needs one byte more."""
    own = {"KEYS": "k", failure.ERROR_MESSAGE: "m" * 100, failure.STACK_HASH: "s"}
    fitted = failure.with_reasons(own, {}, failure.size_bytes(own) - 1)
    assert fitted == own | {failure.ERROR_MESSAGE: "m" * 99}


def test_a_given_value_that_has_no_room_leaves_the_messages_own_one() -> None:
    own = {"colour": "red"}
    assert failure.with_reasons(own, {"colour": "r" * 100}, 50) == own


NAMES = st.sampled_from([*failure.REASONS, "mine", "yours", "KEYS"])
TEXTS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=60)


@given(own=st.dictionaries(NAMES, TEXTS), given_ones=st.dictionaries(NAMES, TEXTS), room=st.integers(0, 500))
def test_reasons_never_cost_more_than_there_is_and_never_what_the_message_has(
    own: dict[str, str], given_ones: dict[str, str], room: int
) -> None:
    kept = {name: value for name, value in own.items() if name not in failure.REASONS}
    fitted = failure.with_reasons(own, given_ones, room)
    if fitted is None:
        assert failure.size_bytes(kept) > room
        return
    assert failure.size_bytes(fitted) == len(encode_properties(fitted)) <= room
    assert kept.keys() <= fitted.keys()
    assert all(fitted[name] in (value, given_ones.get(name)) for name, value in kept.items())


def test_the_limit_is_that_of_a_frame() -> None:
    properties = {"KEYS": "k" * (PROPERTIES_BYTES_MAX - 6)}
    assert failure.size_bytes(properties) == PROPERTIES_BYTES_MAX
    assert failure.with_reasons(properties, {failure.ERROR_CLASS: "E"}, PROPERTIES_BYTES_MAX) == properties
