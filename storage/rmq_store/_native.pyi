"""The optional C extension (sources in native/). Arguments are buffers: contiguous numpy arrays of the dtypes below.

All results are written into arrays that the caller gives, but those for a single message or key, which are returned.
Each function checks what it is given: TypeError for a buffer of another kind of items, ValueError for another number of
them, IndexError for a slice outside of its data.
"""

import mmap
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from rmq_store.format.bytes.native import Bools, Bytes, Int32, Int64, Rows, Texts, UInt32, UInt64

INTERFACE: int

def crc_way(fastest: int) -> int:
    """Take CRCs this way from now on, or the fastest way below it that the processor has: 0 by tables, 1 and 2 by
    carry-less multiplication. Returns which; 2 is what the extension begins with. ValueError: no such way.
    """

def slice_crcs(data: Bytes, starts: Int64, ends: Int64, seeds: UInt32 | None, crcs: UInt32) -> None:
    """Into `crcs` (n,): CRC-32 of `data[starts[i]:ends[i]]`, which continues `seeds[i]`."""
def slice_hashes(data: Bytes, starts: Int64, ends: Int64, seed: int, hashes: UInt32) -> bool:
    """Into `hashes` (n,): Java's hash of a text whose hash is `seed` (32 bits) and `data[starts[i]:ends[i]]` behind it.

    False: refused, one of them is not valid UTF-8.
    """

def encode_frames(
    rows: Rows,
    queue_ids: Int32,
    flags: Int32,
    born_timestamps: Int64,
    reconsume_times: Int32,
    key_prefix: bytes,
    first_sequence: int,
    offsets: Int64,
    hash_offsets: Int32,
    frames: Bytes,
    crcs: UInt32,
    tags_codes: Int64,
    hashes: Int32,
) -> bool:
    """What `measure_frames` and `write_frames` do, in one pass; False: refused, some row cannot be stored, or `frames`
    or `hashes` have no room for all. Every row gets a new unique key, if keys have a length; one that brings its own
    is refused then.
    """

def measure_frames(rows: Rows, offsets: Int64, hash_offsets: Int32, new_keys: Int64) -> int | None:
    """How many new unique keys the rows get; None: refused, some row cannot be stored.

    Into `offsets` (n + 1,): where the frames begin and end, one behind another; into `hash_offsets` (n + 1,) the same
    of their index hashes; into `new_keys` (n,) the how-manieth new unique key the row gets, or -1.
    """

def write_frames(
    rows: Rows,
    first: int,
    behind: int,
    queue_ids: Int32,
    flags: Int32,
    born_timestamps: Int64,
    reconsume_times: Int32,
    key_prefix: bytes,
    first_sequence: int,
    offsets: Int64,
    hash_offsets: Int32,
    new_keys: Int64,
    frames: Bytes,
    crcs: UInt32,
    tags_codes: Int64,
    hashes: Int32,
) -> None:
    """Into `frames`, `crcs` (n,), `tags_codes` (n,) and `hashes`: what `measure_frames` has measured, for the rows
    [first, behind). Several threads may write different rows of one batch.

    New unique keys are `key_prefix` with 12 hex digits that count from `first_sequence`. IndexError: the rows are not
    what was measured.
    """

def copy_frames(
    data: Bytes,
    positions: Int64,
    sizes: Int64,
    topics: tuple[Int32, Int64, Bytes, UInt32],
    queue_ids: Int32,
    sys_flags: Int32,
    reconsume_times: Int32 | None,
    store_host: bytes | None,
    properties: tuple[Int64, Bytes] | None,
    crc_property: bool,
    index_tags: bool,
    offsets: Int64,
    frames: Bytes | pa.Buffer,
    crcs: UInt32,
    tags_codes: Int64,
    hash_offsets: Int32,
    hashes: Int32,
) -> int | None:
    """Into the last six: copies of the frames `data[positions[i]:positions[i] + sizes[i]]`, as `frame_copy` makes them.
    How many index hashes they have; if that is more than there is room for, only their number is right. None: refused,
    some frame is not ordinary, or none at all.

    `topics`: codes (n,), offsets (k + 1,) and bytes of the names, hashes (k,) of the names with "#" behind them.
    `reconsume_times` (n,), `store_host` (8 bytes) and `properties`, offsets (n + 1,) and bytes, replace what the frames
    have. `offsets` and `hash_offsets` (n + 1,), `crcs` and `tags_codes` (n,). IndexError, too, where `frames` has no
    room.
    """

def encode_message(
    topic: str,
    body: bytes,
    properties: dict[str, str],
    queue_id: int,
    flag: int,
    sys_flag: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_host: bytes,
    crc_property: bool,
    index_tags: bool,
) -> tuple[bytearray, list[int], int] | None:
    """As `rmq_store.format.frames.one_frame.encode_one`, which see. None: refused, the message is not ordinary or
    cannot be stored. OverflowError, TypeError: an argument is no number of its width, or of another type.
    """

def encode_batch(
    topic: bytes,
    body: bytes,
    queue_id: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_host: bytes,
    special: tuple[bytes, ...],
    body_bytes_max: int,
    frame_bytes_max: int,
    crc_property: bool,
    index_tags: bool,
    id_prefix: bytes,
    first_id: int,
) -> tuple[bytearray, bytearray, bytearray, bytearray, bytearray, bytearray | None, str] | None:
    """The fields of `rmq_store.format.frames.message_batch.BatchFrames`, which see. None: refused, some message is not
    ordinary or cannot be stored. OverflowError: an argument is no number of its width. ValueError: more than 16 names.
    """

def place_message(
    frame: bytearray, queue_offset: int, commit_log_offset: int, store_timestamp_ms: int, crc_property: bool
) -> None:
    """As `rmq_store.format.frames.message.complete_frame`, which see. IndexError: too short for a frame."""

def append_lone(
    place: tuple[object, ...],
    queue: tuple[object, ...],
    frame: bytearray,
    key_hashes: list[int],
    tags_code: int,
    now_ms: int,
    watch: Callable[[str, str, int, int, bytes], object] | None,
) -> tuple[int, int] | int:
    """As `rmq_store.log.append.append.append_one` under the append lock, if that is free and nothing is unusual
    (`rmq_store.log.append.lone_append`). A number: nothing was appended; 2: what `place` or `queue` says of the files
    is out of date.
    """

def acquire_fence() -> None:
    """What is loaded or read behind it is not older than what was loaded before it."""

def release_fence() -> None:
    """What is stored behind it is seen only with all that was stored or written before it."""

def file_stamp(path: str) -> tuple[int, int, int] | bool | None:
    """Inode, time of the last change in ns and size of a file, without letting other threads run meanwhile; None: there
    is none. False: it cannot be asked, which `os.lstat` explains.
    """

def append_group(
    place: tuple[object, ...],
    queues: dict[tuple[str, int], Any],
    line: list[Any],
    now_ms: int,
    watch: Callable[[str, str, int, int, bytes], object] | None,
) -> bool:
    """As `append_lone` for senders that wait (`rmq_store.log.append.group_append`), as far as nothing is unusual: those
    whose claim it took have their `offsets`. True: what `place` or `queues` says of the files is out of date.
    """

def serve_sends(
    place: tuple[object, ...],
    queues: dict[tuple[str, int], Any],
    rules: tuple[object, ...],
    data: memoryview,
    position: int,
    born_host: bytes,
    now_ms: int,
    watch: Callable[[str, str, int, int, bytes], object] | None,
) -> tuple[int, bytes, dict[tuple[str, int], int], int]:
    """The usual requests at a place in `data` that send one message each, answered
    (`rmq_store.broker.write.sent_requests`): where the first one begins that is left, the answers, the last queue
    offset of each queue that got messages, and whether `place` or `queues` is out of date.
    """

def state_words() -> str:
    """Names of the words of the state page, in their order, each followed by a space."""

def patch_frames(
    frames: Bytes,
    starts: Int64,
    sizes: Int64,
    queue_offsets: Int64,
    physical_offsets: Int64,
    store_timestamp_ms: int,
    crc0: UInt32 | None,
) -> None:
    """As `frame_patch.patch_frames`. IndexError for a frame too short to be one; those before it are patched."""

def chain_entries(
    key_hashes: Int32,
    log_offsets: Int64,
    time_diffs: Int32,
    slots: Bytes,
    first_number: int,
    entries: Bytes,
    met: Int64,
    newest: Int32,
) -> tuple[int, int]:
    """Into `entries` (20 * n,): those of `index.chain_entries`. Into `met` and `newest`: slots and what they get.
    How many that are; how many of them were empty. ValueError, too, for a hash or a number that no entry can have.
    """

def chain_and_point(
    key_hashes: Int32, log_offsets: Int64, time_diffs: Int32, slots: Bytes, first_number: int, entries: Bytes
) -> int:
    """As `chain_entries`, with `slots` that then have what they get. How many were empty. After ValueError for a hash
    they have what they get of some keys.
    """

def copy_slices(
    data: Bytes | pa.Buffer, starts: Int64, ends: Int64, offsets: Int32, values: Bytes | pa.Buffer
) -> int:
    """Into `values`: `data[starts[i]:ends[i]]`, one behind another; into `offsets` (n + 1,) where each begins and ends.

    How many bytes that were. IndexError, too, where `values` has no room for them, or they are 2 GiB or more.
    """

def sum_words(data: Bytes, positions: Int64) -> int:
    """The sum of the big-endian 32-bit words that begin at these positions."""

def read_frames(
    data: Bytes, positions: Int64, sizes: Int64, base_offset: int | None, int32_fields: Int32, int64_fields: Int64
) -> bool | None:
    """The fields of the frames as `frame_fields.frame_columns`: whether all have one topic, of at least one frame.
    None: some frame is not what its entry says.

    Into `int32_fields` (5, n): queue_id, flag, sys_flag, body_crc, reconsume_times. Into `int64_fields` (11, n):
    queue_offset, physical_offset, born_timestamp, store_timestamp, prepared_transaction_offset, body_start, body_end,
    topic_start, topic_end, properties_start, properties_end.
    """

def ipv4_texts(data: Bytes, positions: Int64, offsets: Int32, values: Bytes) -> int:
    """Into `values` (n * 32,) the texts of the hosts of 8 bytes at `positions`, into `offsets` (n + 1,) where they
    begin and end; how many bytes that were.
    """

def split_pieces(
    data: Bytes,
    starts: Int64,
    ends: Int64,
    first_wins: bytes,
    dropped: bytes,
    wanted: tuple[bytes, ...],
    counts: Int64,
    piece_starts: Int64,
    piece_separators: Int64,
    piece_ends: Int64,
    value_starts: Int64,
    value_ends: Int64,
) -> tuple[int, bool] | None:
    """The pieces of the property strings `data[starts[i]:ends[i]]`: how many, and whether all bytes are ASCII.

    Of several of one name the last stays, of `first_wins` the first; `dropped` is left out. Into `counts` (n,): how
    many each string has; into the next three: where name, separator and end of each piece lie; into `value_starts` and
    `value_ends` (k, n): where the values of the k `wanted` names lie, 0 and 0 without one. If that is more pieces than
    there is room for, only their number, perhaps too high, is right. None: some string has very many pieces.
    """

def copy_pieces(
    data: Bytes,
    piece_starts: Int64,
    piece_separators: Int64,
    piece_ends: Int64,
    name_offsets: Int32,
    names: Bytes | pa.Buffer,
    value_offsets: Int32,
    values: Bytes | pa.Buffer,
) -> tuple[int, int]:
    """As `copy_slices`, the names and the values of all pieces; how many bytes each of them were."""

def copy_messages(
    data: Bytes,
    positions: Int64,
    sizes: Int64,
    base_offset: int | None,
    raw_body: bool,
    owner: tuple[bytes, int, Int64] | None,
    names: tuple[bytes, ...],
    numbers: tuple[Int32 | Int64 | None, ...],
    texts: tuple[tuple[Int32, Bytes, Bytes | None] | None, ...],
    properties: tuple[Int32, Int32, Bytes, Int32, Bytes] | None,
    ends: Int64,
) -> bytes | None:
    """Into the columns that are not None: the messages at `positions` (n,); their topic. None: refused, some message is
    not ordinary or none at all, or there is no room for it.

    `owner`: topic, queue id and queue offsets (n,) that they must have. `numbers`: queueId, reconsumeTimes, flag,
    sysFlag; queueOffset, commitLogOffset, bornTimestamp, storeTimestamp, each (n,), times in microseconds. `texts`:
    body, bornHost, storeHost, msgId, tags, keys, each offsets (n + 1,), bytes, and a bitmap of zeros if some may be
    null. `properties`: how many pieces there are before each row (n + 1,), offsets and bytes of names and of values.
    Into `ends` (9,): bytes of the six texts; pieces, bytes of their names, of their values.
    """

def make_messages(
    made_class: type,
    fields: tuple[object, ...],
    columns: tuple[Int64 | tuple[Int32, list[Any]] | tuple[Int32, Bytes | pa.Buffer | bytes, bool], ...],
    properties: tuple[
        Int32, tuple[Int32, list[Any]], tuple[Int32, Bytes | pa.Buffer | bytes, bool]
    ],
    count: int,
    first: int,
    behind: int,
    added: dict[str, str],
) -> list[Any]:
    """Objects of the rows [first, behind) of `count` = n. `fields` are slots of `made_class`, one for each column and
    one for a dict of its own with the properties and with what is `added` to them.

    A column: numbers (n,); or codes (n,) and what they stand for; or where the values lie (n + 1,), bytes, and whether
    these are text. `properties`: where the entries of each row lie (n + 1,), names and values of the entries, both as
    columns. UnicodeDecodeError: no UTF-8. TypeError: the class is no plain one with slots.
    """

def chain_one(
    slots: Int32, header: bytes, key_hashes: list[int], phy_offset: int, timestamp_ms: int, entry_max: int
) -> tuple[int, bytes, list[tuple[int, int]], bytes] | None:
    """As `rmq_store.format.views.index.chain_one`, which see; the four fields of its answer. None: refused, a record of
    more than 64 keys. ValueError: a hash is negative, or there are no slots.
    """

def message_sizes(data: Bytes, positions: Int64, base_offset: int, stop: int, sizes: Int32) -> None:
    """Into `sizes` (n,): those of the messages that begin at `positions` and end before `stop`; 0 where none does."""

def read_slots(data: Bytes, slot_count: int, entry_max: int, key_hashes: Int32, numbers: Int32) -> int:
    """Into `numbers` (n,): what the slots of `key_hashes` hold, empty ones left out; how many that are. Their hashes
    then come first. ValueError: a hash is negative.
    """

def follow_chains(
    data: Bytes,
    slot_count: int,
    entry_max: int,
    key_hashes: Int32,
    numbers: Int32,
    above: Int32,
    log_start: int,
    log_end: int,
    found: Int64,
) -> tuple[int, int, int]:
    """One step along n chains of an index file: from the entries `numbers` of `key_hashes`, which follow those with the
    numbers `above`, to the next ones. How many chains go on; these now come first in the three arrays. Into `found`
    (n,): log offsets in [log_start, log_end) of entries with the hash; how many. Last, the row of an entry that is
    not of its chain, at which the step has ended, or -1.
    """

def newest_entries(
    maps: tuple[Bytes | mmap.mmap, ...],
    slot_count: int,
    entry_max: int,
    key_hash: int,
    begin_ms: int,
    end_ms: int,
    log_start: int,
    log_end: int,
) -> list[int] | None:
    """As `rmq_store.log.views.index_map.newest_entries`, which see; newest file first. ValueError: a file of another
    size."""

def dispatch_frames(
    data: Bytes,
    positions: Int64,
    sizes: Int64,
    base_offset: int,
    indexes_tags: bool,
    codes: Int32,
    queue_ids: Int32,
    queue_offsets: Int64,
    tags_codes: Int64,
    timestamps: Int64,
    dispatchable: Bools,
    key_counts: Int32,
    key_hashes: Int32,
    topic_starts: Int64,
    topic_sizes: Int64,
) -> tuple[int, int] | None:
    """Into the arrays (n,): what `DispatchColumns` has of the frames at `positions` (n,), without times of delivery.
    `codes` are indexes into the topics, in the order in which they come first; `topic_starts` and `topic_sizes` (256,)
    are where the names of these are in the data. How many topics and hashes there are; hashes for which `key_hashes`
    has no room are only counted. None: something is not usual, and the arrays hold nothing.
    """

def walk_frames(
    data: Bytes, position: int, stop: int, base_offset: int | None, crc_position: int, positions: Int64, sizes: Int64
) -> int:
    """Into `positions` and `sizes` (n,): the sound frames that lie one behind another from `position` up to `stop`, or
    as many as there is room for. How many that are. From `crc_position` on a frame must have a CRC property. Without
    `base_offset` a frame may have any commit-log offset.
    """

def walk_queue_frames(
    data: Bytes | bytes | memoryview, pieces: Int64, queue_id: int, first_queue_offset: int, positions: Int64,
    sizes: Int64,
) -> int:
    """As `walk_frames` over pieces of the data, each its beginning and its end, one behind another as far as they are
    whole. The frames come from anywhere in a log: those that are of this queue, and have the queue offsets that follow
    `first_queue_offset` without a gap. ValueError: it is below 0.
    """

def whole_frames(
    data: bytes | mmap.mmap, base_offset: int, entries: bytes, queue_id: int, queue_offset: int, bytes_max: int
) -> bytes | None:
    """The frames that the entries of a consume queue point to, one behind another, if all lie in `data`, a segment that
    begins at `base_offset`, and have no more than `bytes_max`. Each must say the size of its entry, this queue id, and
    the queue offset: that of the first one, and so on. None: one of them is not so, or not an entry of a message.
    """

def common_size(directory: str, numbers: Int64) -> int:
    """The size of the files in the directory that are named by these numbers, in 20 digits. 0: they are not regular
    files of one size, or empty, or cannot be looked at; or there are no numbers.
    """

def crc32c(data: bytes | bytearray | memoryview | Bytes) -> int:
    """CRC-32C (Castagnoli) of contiguous bytes."""

def blake2b_kind(most: int) -> int:
    """Make content digests from now on as the processor does best, but by no kind above this one: 0 as all can, 1 by
    AVX2, 2 by AVX-512. The kind that is used.
    """

def crc32c_by_processor(wanted: bool) -> bool:
    """Take CRC-32C by the processor's own instruction from now on, if it has one, or by tables. Whether it is used."""

def measure_records(
    data: Bytes | memoryview | bytes, regions: Int64, from_offset: int, totals: Int64
) -> tuple[int, int] | None:
    """Into `totals` (6,): how many records with an offset from `from_offset` on the `regions` (8 * k) have, the bytes
    of their keys and values, how many headers, the bytes of their names and values. Or else the region whose records
    are wrong, and why: a place in `batches_python.REASONS`.

    A region: start and end in `data`, count of records, base offset, last offset delta, base timestamp, timestamp type,
    largest timestamp, of one batch. IndexError: it does not lie in the data.
    """

def read_records(
    data: Bytes | memoryview | bytes,
    regions: Int64,
    from_offset: int,
    offsets: Int64,
    timestamps: Int64,
    types: Bytes,
    keys: tuple[Int32, Bytes, Bytes],
    values: tuple[Int32, Bytes, Bytes],
    header_offsets: Int32,
    names: tuple[Int32, Bytes, None],
    header_values: tuple[Int32, Bytes, Bytes],
) -> tuple[int, int, int]:
    """Into the columns: the records that `measure_records` has measured, n of them with h headers. How many keys,
    values and values of headers are null. IndexError: they are others.

    `offsets`, `timestamps`, `types` (n,), `header_offsets` (n + 1,). Of the others offsets (n + 1 or h + 1,), bytes,
    and a bitmap of zeros, one bit for each.
    """

def write_records(
    columns: tuple[Int64, Texts, Texts, Int32, Texts, Texts], first: int, records: Bytes
) -> tuple[int, int, int]:
    """Into `records`: rows from `first` on, as many as there is room for, as records of one batch that begins with this
    row. The row behind them, their bytes, and their largest timestamp; if there is no room for the first one, the bytes
    that it needs.

    `columns`: timestamps (n,), keys, values, header offsets (n + 1,), names and values of headers. IndexError: there is
    no such row, or it does not lie in its columns, or a name is null.
    """

def content_digests(
    frames: Bytes, offsets: Int64, header_bytes: int, seed: bytes, places: Bytes, digests: Bytes
) -> None:
    """Into `digests` (16 * n): those of `rmq_store.format.batches.content_keys`, of the frames that begin at `offsets`
    (n + 1,) with headers of so many bytes. `places` (16 * n) are put before their content, `seed` (128) before that.
    IndexError: a row is no frame.
    """

def number_digests(digests: UInt64, slots: UInt64, used: int, ordinals: Int64) -> int:
    """Into `ordinals` (n,): how many equal ones of `digests` (2 * n) came before, as the table `slots` knows, which
    learns them. How many slots are used then; it is `used` before. ValueError: no room.

    A slot has three numbers: a digest, and how often it came; 0 for nobody. There are a power of two of them.
    """

def store_digests(digests: UInt64, slots: UInt64, numbers: UInt64) -> None:
    """Into the table `slots`: these `numbers` (n,), none of them 0, of `digests` (2 * n); the last of equal ones stays.
    ValueError: no room.
    """

def move_slots(known: UInt64, slots: UInt64) -> int:
    """Into the table `slots`: what is in the table `known`, and nothing else. How many slots are used. ValueError: it
    has not more slots.
    """

def find_digests(digests: UInt64, slots: UInt64, numbers: UInt64) -> None:
    """Into `numbers` (n,): those of `digests` (2 * n) in the table `slots`; 0 for those that are not in it."""

def write_entries(
    frames: Bytes,
    offsets: Int64,
    header_bytes: int,
    keys: Bytes | None,
    tail: bytes,
    entry_offsets: Int64,
    entries: Bytes,
) -> int:
    """Into `entries` and `entry_offsets` (n + 1,): the frames as entries of a batch body, each with its own of `keys`
    (16 * n) as UNIQ_KEY before its properties and `tail` behind them. How many rows that were: the next one is no
    frame, or its properties are too long, or there is no room.
    """

def measure_entries(rows: Rows, added_bytes: int, entry_bytes_max: int, rest_bytes_max: int, sizes: Int64) -> bool:
    """Into `sizes` (n,): the bytes of each row's entry in a batch body, with `added_bytes` more in its properties.
    False: a row cannot be stored, has an empty body, or an entry that is longer than that, or is so without its body.
    """

def write_entries_of_rows(
    rows: Rows,
    picked: Int64,
    sizes: Int64,
    flags: Int32,
    reconsume_times: Int32,
    places: Bytes,
    seed: bytes,
    tag: bytes,
    tail: bytes,
    slots: UInt64,
    used: int,
    ordinals_max: int,
    ends: Int64,
    keys: Bytes,
    checks: UInt64,
) -> tuple[bytes, int]:
    """The rows `picked` (m,) as entries of these `sizes` (n,), each with its content key as UNIQ_KEY before its
    properties and `tail` behind them. Into `ends`, `checks` (m,) and `keys` (16 * m): where each entry ends, the CRC of
    its body above its length, and the keys. `slots` and `used`: as for `number_digests`; `tag` (2): what keys begin
    with. And how many slots are used then; -1: an ordinal is `ordinals_max` or more, or there is no room. IndexError: a
    row is not what was measured.
    """

def keys_in_frames(data: Bytes, positions: Int64, tag: bytes, keys: Bytes, checks: UInt64, rows: Int64) -> int:
    """Into `keys` (16 * n), `checks` (n,) and `rows` (n,): of the frames at `positions` (n,) whose first UNIQ_KEY has
    32 upper-case hex digits and begins with the bytes `tag`: the key, the CRC of the body above its length, and which
    of the positions. How many that are. IndexError: a row is no frame.
    """

def take_pull_answers(
    data: bytes | bytearray | memoryview,
    position: int,
    rounds: list[tuple[Int64, Int64]],
    taken: list[tuple[int, tuple[int, int, int, int, int, bytes, str]]],
) -> int:
    """Take the usual answers to pulls of `rounds` that lie one behind another from `position` on, whole. One that has
    all that was asked for is put into the area of its round, if there is room. Of others are appended to `taken` the
    opaque, and the fields of `rmq_store.protocol.wire.pull_answers.PullAnswer`; `PulledRound` there has the form of a
    round. Where the first frame begins that is another one, or not all there.
    """

def receive_pull_answers(
    socket: int, others: int, buffer: bytearray, there: int, timeout_ms: int, rounds: list[tuple[Int64, Int64]]
) -> tuple[int, int, int, int]:
    """Read from a socket behind the `there` bytes of the buffer, and place answers as `take_pull_answers` does, until
    something ends it: `rmq_store.remoting.transport.pull_reading.End`. Returns that, the bytes in the buffer that are
    left, how many were read, and an errno.
    """

def request_frames(parts: tuple[bytes, ...], rows: list[tuple[int, ...]]) -> bytes | None:
    """The frames of requests with JSON headers, one behind another: the n + 1 `parts` of the header, and between them
    the n numbers of each row. None: left to Python, a number is larger than 64 bits, or a frame might be too large.
    """
