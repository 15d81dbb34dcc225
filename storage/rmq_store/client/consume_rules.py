"""What consumption on several threads does with any batch, of objects or of rows.

    CONSUME_SUCCESS                               messages up to the context's ackIndex are done, the others failed
    RECONSUME_LATER, None, an exception, else     all failed

Source: ConsumeMessageConcurrentlyService.java (ConsumeRequest#run, processConsumeResult, cleanExpireMsg).
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable

from rmq_store.client.executor import Executor, Task
from rmq_store.client.listener import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus
from rmq_store.client.rate_limiter import RateLimiter

RESUBMIT_MS = 5000
EXPIRED_DELAY_LEVEL = 3
EXPIRED_MAX = 16

_log = logging.getLogger(__name__)


def done_count(
    call: Callable[[], object],
    context: ConsumeConcurrentlyContext,
    count: int,
    group: str,
    what: Callable[[], str],
) -> int:
    """Call the listener with `count` messages, and return how many of them it has done: the first ones, [0, n).

    Never raises what the listener raises; only what ends a process (SystemExit) passes. `what` names the messages for
    the log.
    """
    try:
        status = call()
        ack_index = operator.index(context.ack_index)
    except Exception:
        _log.warning("group %s: the listener failed on %s", group, what(), exc_info=True)
        return 0
    if not isinstance(status, ConsumeConcurrentlyStatus):
        _log.warning("group %s: the listener returned %r for %s, so all of them failed", group, status, what())
        return 0
    if status is not ConsumeConcurrentlyStatus.CONSUME_SUCCESS:
        return 0
    return max(0, min(ack_index + 1, count))


def run_at_rate(executor: Executor, limiter: RateLimiter | None, count: int, work: Task) -> None:
    """Run what consumes `count` messages: now, or when the limiter lets them pass."""
    wait_ms = 0 if limiter is None else limiter.wait_ms(count)
    if wait_ms > 0:
        executor.submit_later(work, wait_ms)
    else:
        work()
