"""Pieces as small as the stores of the harness."""

from __future__ import annotations


def write_in_small_pieces() -> None:
    """For this process. In pieces of the usual size no append of the harness's traffic would have a second one, and the
    disk would be told of none before the flush.
    """
    from rmq_store.files import durable
    from rmq_store.log.append import frame_writer, write_back

    durable.WRITE_BYTES = write_back.STEP_BYTES = 4096
    frame_writer.PIECE_BYTES, frame_writer.FOR_TWO_PIECES = 8192, 2
