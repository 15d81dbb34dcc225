from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.format.frames.stored_message import decode_frame
from rmq_store.format.text.names import SCHEDULE_TOPIC
from rmq_store.format.views import consume_queue
from rmq_store.format.views.consume_queue import ENTRY, PRE_BLANK, PRE_BLANK_SIZE, encode_entries, entries, tags_code

GOLDEN_LEVELS_MS = [1000 * second for level in range(1, 9) for second in (level, level)] + [9000, 7200_000]

rows = st.lists(
    st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1), st.integers(-(2**63), 2**63 - 1)), max_size=8
)


@pytest.mark.statement("G04")
def test_entry_and_pre_blank_are_those_of_the_specification() -> None:
    encoded = encode_entries(np.array([0x12345678]), np.array([179]), np.array([tags_code("TagA")])).tobytes()
    assert encoded.hex() == "0000000012345678000000b3000000000027a807"
    assert PRE_BLANK.hex() == "00000000000000007fffffff0000000000000000"
    assert entries(PRE_BLANK)["frame_size"].tolist() == [PRE_BLANK_SIZE]


@given(rows, st.binary(max_size=19))
def test_entries_read_back_and_a_partial_one_is_left_out(values: list[tuple[int, int, int]], partial: bytes) -> None:
    offsets, sizes, codes = (np.array([row[k] for row in values], np.int64) for k in range(3))
    encoded = encode_entries(offsets, sizes, codes).tobytes()
    assert len(encoded) == 20 * len(values)
    assert entries(memoryview(encoded + partial)).tolist() == values


def test_tags_code_is_sign_extended_and_zero_without_tags() -> None:
    assert tags_code("TAG-中文") == -1827284947
    encoded = encode_entries(np.array([0]), np.array([0]), np.array([tags_code("TAG-中文")]))
    assert encoded.tobytes()[12:].hex() == "ffffffff9315d82d"
    assert tags_code(None) == tags_code("") == 0


def test_only_codes_below_any_hash_are_extension_addresses() -> None:
    codes = np.array([-(2**63), -(2**31) - 1, -(2**31), 0, 2**40], np.int64)
    assert consume_queue.is_extension_address(codes).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("name", ["golden_small/normal", "golden_small/propcrc", "golden/store"])
@pytest.mark.statement("C05", "G04")
def test_queue_files_of_java_follow_from_its_commit_log(name: str, request: pytest.FixtureRequest, walk_frames) -> None:  # type: ignore[no-untyped-def]
    fixture, _, below = name.partition("/")
    store: Path = request.getfixturevalue(fixture) / below
    queues = defaultdict(list)
    for offset, raw in walk_frames(store):
        message = decode_frame(raw, 0, len(raw))
        if message.is_dispatchable:
            code = tags_code(message.tags)
            if message.topic == SCHEDULE_TOPIC:
                delays = GOLDEN_LEVELS_MS if fixture == "golden" else [1000, 5000, 10000]
                code = message.store_timestamp_ms + delays[message.queue_id]
            queues[message.topic, message.queue_id].append((message.queue_offset, (offset, message.total_size, code)))
    assert queues
    for (topic, queue_id), expected in queues.items():
        files = sorted((store / "consumequeue" / topic / str(queue_id)).iterdir())
        first = int(files[0].name) // 20
        stored = entries(b"".join(file.read_bytes() for file in files))
        numbers = [number for number, _ in expected]
        assert [stored[number - first].item() for number in numbers] == [entry for _, entry in expected]
        used = stored[(stored["frame_size"] > 0) & (stored["frame_size"] != PRE_BLANK_SIZE)]
        columns = (used[field].astype(np.int64) for field in ENTRY.names or ())
        assert encode_entries(*columns).tobytes() == used.tobytes()
        assert len(used) == len(set(numbers))
