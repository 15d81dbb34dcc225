"""The fixed fields and the lengths of many frames at once, all checked (data plane). Layout: see `frame_check`.

`read_frames` trusts nothing: positions and sizes come from queue entries, the rest from the log. Every length is
compared with its frame, and every frame with the buffer, before a byte behind it is read. It accepts exactly the frames
that `check_frame` calls messages. Source: CommitLog.java (checkMessageAndReturnSize), MessageDecoder.java (decode).
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.errors import CorruptRecordError, UsageError
from rmq_store.format.bytes import native
from rmq_store.format.bytes.gather import (
    SLICES_BYTES_MAX,
    Bytes,
    Positions,
    as_text,
    gather_fields,
    repeated,
    take_slices,
)
from rmq_store.format.frames.frame_check import (
    BODY_POSITIONS,
    FRAME_BYTES_MIN,
    HEADER,
    HOSTS_V6_MASK,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    TRANSACTION_MASK,
    SysFlag,
)
from rmq_store.format.properties.property_columns import KEYS_AND_TAGS, PropertyPieces, split_property_slices
from rmq_store.format.properties.property_string import UNIQUE_KEY
from rmq_store.format.text.host import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from rmq_store.lazy.dataclasses import dataclass

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def header_dtype(is_born_ipv6: bool, is_store_ipv6: bool) -> np.dtype[np.void]:
    """All fields before the body, hosts as raw bytes."""
    return np.dtype(
        [
            *((name, HEADER[name]) for name in HEADER.names or ()),
            ("born_host", (np.void, IPV6_HOST_BYTES if is_born_ipv6 else IPV4_HOST_BYTES)),
            ("store_timestamp", ">i8"),
            ("store_host", (np.void, IPV6_HOST_BYTES if is_store_ipv6 else IPV4_HOST_BYTES)),
            ("reconsume_times", ">i4"),
            ("prepared_transaction_offset", ">i8"),
            ("body_length", ">i4"),
        ]
    )


# An IPv6 host moves what follows it by 12 bytes.
IPV4_HEADER = header_dtype(False, False)
assert IPV4_HEADER.itemsize == BODY_POSITIONS[0]

BORN_HOST_POSITION = HEADER.itemsize
IPV6_MORE_BYTES = IPV6_HOST_BYTES - IPV4_HOST_BYTES
_STORE_HOST_POSITION = BORN_HOST_POSITION + 8 + 8  # with an IPv4 born host


@dataclass(frozen=True)
class FrameHeaders:
    """Fields of n frames. Every array is (n,) and owns its memory, except that `data` must stay mapped for texts.

    `body_crc` (without its highest bit) is not verified here; `queue_offset` is 0 for PREPARED and ROLLBACK. `*_start`,
    `*_end` are byte positions in `data`. `one_topic`: all are known to have the same topic.
    """

    data: Bytes
    positions: Positions
    one_topic: bool
    queue_id: Int32
    flag: Int32
    sys_flag: Int32
    body_crc: Int32
    reconsume_times: Int32
    queue_offset: Int64
    physical_offset: Int64
    born_timestamp: Int64
    store_timestamp: Int64
    prepared_transaction_offset: Int64
    body_start: Positions
    body_end: Positions
    topic_start: Positions
    topic_end: Positions
    properties_start: Positions
    properties_end: Positions

    def take(self, rows: npt.NDArray[np.intp]) -> FrameHeaders:
        """The headers of some of the frames, in that order."""
        arrays = (field.name for field in fields(self) if field.name not in ("data", "one_topic"))
        return replace(self, **{name: getattr(self, name)[rows] for name in arrays})

    @property
    def transaction_type(self) -> Int32:
        """The two transaction bits of sys_flag, in place."""
        return self.sys_flag & np.int32(TRANSACTION_MASK)

    @property
    def dispatchable(self) -> Mask:
        """True for frames that get a queue entry: all but PREPARED and ROLLBACK."""
        kind = self.transaction_type
        dispatchable: Mask = (kind == 0) | (kind == int(SysFlag.TRANSACTION_COMMIT))
        return dispatchable

    def flagged(self, bits: SysFlag) -> Mask:
        """True for frames that have any of `bits` in sys_flag."""
        return _flagged(self.sys_flag, bits)

    @property
    def born_host_position(self) -> Positions:
        """Where the born host lies: 8 bytes, or 20 with SysFlag.BORN_HOST_V6."""
        return self.positions + BORN_HOST_POSITION

    @property
    def store_host_position(self) -> Positions:
        """Where the store host lies: 8 bytes, or 20 with SysFlag.STORE_HOST_V6."""
        return self.positions + _STORE_HOST_POSITION + _more_bytes(self.sys_flag, SysFlag.BORN_HOST_V6)

    def topics(self) -> pa.StringArray:
        """Topic names, (n,) string."""
        count = 1 if self.one_topic else len(self.positions)
        texts = as_text(take_slices(pa.py_buffer(self.data), self.topic_start[:count], self.topic_end[:count]))
        return repeated(texts[0].as_py(), len(self.positions)) if self.one_topic else texts

    def bodies(self) -> pa.BinaryArray:
        """Bodies as stored, perhaps compressed, (n,) binary."""
        return take_slices(pa.py_buffer(self.data), self.body_start, self.body_end)

    def properties(self, noted: tuple[str, ...] = KEYS_AND_TAGS, *, first_wins: str = UNIQUE_KEY) -> PropertyPieces:
        """The properties of all frames; `noted` and `first_wins` as `split_property_slices` takes them."""
        return split_property_slices(
            self.data, self.properties_start, self.properties_end, noted, first_wins=first_wins
        )

    def property_strings(self) -> pa.BinaryArray:
        """Property strings as stored, (n,) binary."""
        return take_slices(pa.py_buffer(self.data), self.properties_start, self.properties_end)


def frame_columns(buffer: pa.Buffer, positions: Int64, sizes: Int32, *, base_offset: int | None = None) -> FrameHeaders:
    """Read and check the fixed fields and all lengths of the frames at `positions` (n,) with `sizes` (n,) bytes.

    `base_offset` is the commit-log offset of the buffer's first byte: each frame's physicalOffset must be that plus its
    position. None: not compared, and errors name the position.

    Raises:
        CorruptRecordError: a frame is not what its queue entry says; `.offset` is where in the log, `.path` is empty.
        UsageError: the buffer has 2 GiB or more; no segment has.
    """
    if buffer.size > SLICES_BYTES_MAX:
        raise UsageError(f"a segment of {buffer.size} bytes is larger than any RocketMQ has")
    data: Bytes = np.frombuffer(buffer, np.uint8)
    positions = np.ascontiguousarray(positions, np.int64)
    lengths: Int64 = np.ascontiguousarray(sizes, np.int64)
    if native.LOADED:
        # The order of the arrays is that of the fields above, from queue_id on.
        int32_fields, int64_fields = np.empty((5, len(positions)), np.int32), np.empty((11, len(positions)), np.int64)
        one_topic = native.functions.read_frames(data, positions, lengths, base_offset, int32_fields, int64_fields)
        if one_topic is not None:
            return FrameHeaders(data, positions, one_topic, *int32_fields, *int64_fields)
        # The checks below say which one is bad, and why.
    refuse = _Refusal(positions, base_offset or 0)

    refuse(lengths < FRAME_BYTES_MIN, "an entry of fewer bytes than the fixed fields of a frame take")
    # Not positions + lengths > len(data): that sum can overflow.
    refuse((positions < 0) | (positions > len(data) - lengths), "a frame that does not lie within its segment")
    header = gather_fields(data, positions, IPV4_HEADER)
    magic = header["magic"]
    is_v2 = magic == MESSAGE_MAGIC_V2
    refuse((magic != MESSAGE_MAGIC_V1) & ~is_v2, "no message magic")
    refuse(header["total_size"] != lengths, "a frame of another total size than its entry says")
    if base_offset is not None:
        refuse(header["physical_offset"] != positions + base_offset, "a frame with another physical offset")
    refuse((header["queue_id"] < 0) | (header["queue_offset"] < 0), "a negative queue id or queue offset")

    sys_flag = header["sys_flag"].astype(np.int32)
    store_timestamp = header["store_timestamp"].astype(np.int64)
    tail = header
    body_start = positions + BODY_POSITIONS[0]
    ends = positions + lengths
    if bool((sys_flag & HOSTS_V6_MASK).any()):
        born_more = _more_bytes(sys_flag, SysFlag.BORN_HOST_V6)
        more = born_more + _more_bytes(sys_flag, SysFlag.STORE_HOST_V6)
        refuse(lengths < FRAME_BYTES_MIN + more, "a total size that is less than the fixed fields take")
        store_timestamp = gather_fields(data, positions + born_more, IPV4_HEADER)["store_timestamp"].astype(np.int64)
        tail = gather_fields(data, positions + more, IPV4_HEADER)
        body_start = body_start + more

    body_length = tail["body_length"].astype(np.int64)
    topic_start = body_start + body_length + 1 + is_v2
    # At least one byte of topic and the length of the properties must follow.
    refuse((body_length < 0) | (topic_start + 1 + 2 > ends), "a body length that does not fit its total size")
    body_end = body_start + body_length
    topic_length = data[body_end].view(np.int8).astype(np.int64)
    if bool(is_v2.any()):
        topic_length = np.where(is_v2, gather_fields(data, body_end, ">i2").astype(np.int64), topic_length)
    properties_start = topic_start + topic_length + 2
    refuse((topic_length <= 0) | (properties_start > ends), "a topic length that does not fit its total size")
    properties_length = gather_fields(data, properties_start - 2, ">i2").astype(np.int64)
    refuse(properties_start + properties_length != ends, "lengths that do not add up to its total size")
    return FrameHeaders(
        data=data,
        positions=positions,
        one_topic=False,
        queue_id=header["queue_id"].astype(np.int32),
        flag=header["flag"].astype(np.int32),
        sys_flag=sys_flag,
        body_crc=header["body_crc"].astype(np.int32),
        reconsume_times=tail["reconsume_times"].astype(np.int32),
        queue_offset=header["queue_offset"].astype(np.int64),
        physical_offset=header["physical_offset"].astype(np.int64),
        born_timestamp=header["born_timestamp"].astype(np.int64),
        store_timestamp=store_timestamp,
        prepared_transaction_offset=tail["prepared_transaction_offset"].astype(np.int64),
        body_start=body_start,
        body_end=body_end,
        topic_start=topic_start,
        topic_end=topic_start + topic_length,
        properties_start=properties_start,
        properties_end=ends,
    )


class _Refusal:
    """Raises for the first row that a mask marks, naming its place in the log."""

    def __init__(self, positions: Positions, base_offset: int) -> None:
        self._positions = positions
        self._base_offset = base_offset

    def __call__(self, bad: Mask, what: str) -> None:
        if bool(bad.any()):
            raise CorruptRecordError("", self._base_offset + int(self._positions[int(bad.argmax())]), what)


def _more_bytes(sys_flag: Int32, v6_bit: SysFlag) -> Int64:
    """(n,): how many bytes more than an IPv4 host the host of this bit takes."""
    more: Int64 = _flagged(sys_flag, v6_bit) * np.int64(IPV6_MORE_BYTES)
    return more


def _flagged(sys_flag: Int32, bits: SysFlag) -> Mask:
    flagged: Mask = (sys_flag & np.int32(bits)) != 0
    return flagged
