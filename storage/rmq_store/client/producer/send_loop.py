"""Retries of sends: which failures are followed by another try, at which queue, and when.

    failure                              retried (sync)                     counts against the broker (5.x / 4.x)
    RemotingError                        always                             yes / yes
    MQClientError                        always                             no  / yes
    MQBrokerError, code in the set       yes                                yes / yes
    MQBrokerError, another code          no, raised as it is                yes / yes
    interruption                         no                                 no  / yes
    status other than SEND_OK            by retry_another_broker_when_...   no  / no
    time budget used up before a try     no: RemotingTooMuchRequestError    -

A retry follows at once and avoids the broker that failed; after a flow-control answer it waits by the back-off. Half
messages are retried only if the broker cannot have received them (no connection). Asynchronous sends stay at their
broker and are retried after RemotingErrors and flow control only. A message with a fixed queue is tried once. The error
of the last try is raised; `ClientError.doubt` names an earlier one after which the message may be stored. Sources:
DefaultMQProducerImpl.java (sendDefaultImpl, sendSelectImpl), MQClientAPIImpl.java (onExceptionImpl).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import NoReturn

from rmq_store.backoff import Uniform
from rmq_store.client.backend.queue_selection import ThreadLocalIndex
from rmq_store.client.delivery.outcome import SendOutcome, verdict_of, with_doubt
from rmq_store.client.producer.fault_strategy import MQFaultStrategy
from rmq_store.client.producer.flow_control import FlowControlWait
from rmq_store.client.producer.producer_config import FLOW_CONTROL_CODES, ProducerConfig
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.errors import (
    ClientError,
    ClientErrorCode,
    MQBrokerError,
    MQClientError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
    TimerNotSupportedError,
)
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import SendResult, SendStatus

_LOG = logging.getLogger(__name__)

Attempt = Callable[[MessageQueue, int], SendResult]
"""attempt(queue, timeout in ms): one request."""

_CLIENT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (RemotingConnectError, ClientErrorCode.CONNECT_BROKER_EXCEPTION),
    (RemotingTimeoutError, ClientErrorCode.ACCESS_BROKER_TIMEOUT),
    (MQClientError, ClientErrorCode.BROKER_NOT_EXIST_EXCEPTION),
)


@dataclass(frozen=True, slots=True)
class Request:
    """One send. `fixed_queue`: the only queue allowed. The other fields: the tries, the start, and the time limit (ms
    of the loop's timer). `doubts`: errors of tries after which a broker may have stored the message.
    """

    topic: str
    queues: Sequence[MessageQueue]
    fixed_queue: MessageQueue | None
    index: ThreadLocalIndex
    attempt: Attempt
    begin_ms: float
    timeout_ms: int
    is_half: bool = False
    doubts: list[ClientError] = field(default_factory=list)


class SendLoop:
    """The loops of one producer. `timer` gives ms, `sleep` takes ms; safe for threads."""

    def __init__(
        self,
        config: ProducerConfig,
        strategy: MQFaultStrategy,
        not_ok_is_retried: Callable[[str], bool],
        *,
        timer: Callable[[], float],
        sleep: Callable[[float], None],
        uniform: Uniform = random.uniform,
    ) -> None:
        self._config = config
        self._strategy = strategy
        self._not_ok_is_retried = not_ok_is_retried
        self._timer = timer
        self._sleep = sleep
        self._uniform = uniform

    def send(self, request: Request, retry_times: int) -> SendResult:
        """Send synchronously, with up to `retry_times` further tries.

        Raises:
            MQClientError: the last try failed too; `response_code` says how, its cause is the last error.
            MQBrokerError: an answer that is not retried.
            TimerNotSupportedError: the last broker that was tried has no timers.
            RemotingTooMuchRequestError: the time budget was used up before a try.
        """
        try:
            return self._send(request, retry_times)
        except ClientError as error:
            _raise(error, request.doubts)

    def _send(self, request: Request, retry_times: int) -> SendResult:
        wait = FlowControlWait(self._config.backoff, request.begin_ms, self._uniform)
        result: SendResult | None = None
        error: Exception | None = None
        brokers: list[str] = []
        for number in range(1 + retry_times):
            queue = self._strategy.select_one_message_queue(
                request.queues, request.index, brokers[-1] if brokers else None
            )
            remaining_ms = self._remaining(request)
            if remaining_ms <= 0:
                if result is not None:
                    return result
                last = f"; the last try: {error}" if error is not None else ""
                raise RemotingTooMuchRequestError(f"sendDefaultImpl call timeout{last}") from error
            brokers.append(queue.broker_name)
            try:
                result = self._try(request, queue, self._capped(remaining_ms, is_last=number == retry_times))
                if result.status is SendStatus.SEND_OK or request.is_half:
                    return result
                if not self._not_ok_is_retried(queue.broker_name):
                    return result
            except (RemotingError, MQClientError, MQBrokerError) as failure:
                error = failure
                if not self._is_retried(failure):
                    if result is not None:
                        return result
                    raise
                if request.is_half and not isinstance(failure, RemotingConnectError):
                    break
                if number < retry_times and not self._wait_if_asked(failure, wait, request):
                    break
        if result is not None:
            return result
        assert error is not None
        self._give_up(request, brokers, error)

    def send_once(self, request: Request) -> SendResult:
        """One try at the fixed queue; its error is raised unchanged.

        Raises:
            RemotingTooMuchRequestError: the time budget was used up before.
        """
        assert request.fixed_queue is not None
        remaining_ms = self._remaining(request)
        if remaining_ms <= 0:
            raise RemotingTooMuchRequestError("sendSelectImpl call timeout")
        return request.attempt(request.fixed_queue, remaining_ms)

    def send_oneway(self, request: Request) -> None:
        """One try. The broker's answer is only logged, since a real broker does not answer. Raises as `send`."""
        try:
            if request.fixed_queue is not None:
                self.send_once(request)
                return
            queue = self._strategy.select_one_message_queue(request.queues, request.index)
            remaining_ms = self._remaining(request)
            if remaining_ms <= 0:
                raise RemotingTooMuchRequestError("sendDefaultImpl call timeout")
            try:
                self._try(request, queue, remaining_ms)
            except (RemotingError, MQClientError) as error:
                self._give_up(request, [queue.broker_name], error)
        except MQBrokerError as error:
            _LOG.warning("a oneway message to %s was refused: %s", request.topic, error)

    def send_async(self, request: Request) -> SendResult:
        """An asynchronous send, run by a background thread; the last try's error is raised unchanged.

        Raises:
            RemotingTooMuchRequestError: the time budget was used up before the first try.
        """
        try:
            return self._send_async(request)
        except ClientError as error:
            _raise(error, request.doubts)

    def _send_async(self, request: Request) -> SendResult:
        retry_times = self._config.retry_times_when_send_async_failed
        wait = FlowControlWait(self._config.backoff, request.begin_ms, self._uniform)
        queue = self._strategy.select_one_message_queue(request.queues, request.index)
        if self._remaining(request) <= 0:
            raise RemotingTooMuchRequestError("DEFAULT ASYNC send call timeout")
        for number in range(1 + retry_times):
            try:
                return self._try(request, queue, self._remaining(request))
            except (RemotingError, MQBrokerError) as failure:
                if number == retry_times or not self._is_retried_async(failure):
                    raise
                if request.is_half and not isinstance(failure, RemotingConnectError):
                    raise
                if not self._wait_if_asked(failure, wait, request) or self._remaining(request) <= 0:
                    raise
                queue = self._next_async(request, queue)
        raise AssertionError("the last try returns or raises")

    def _try(self, request: Request, queue: MessageQueue, timeout_ms: int) -> SendResult:
        """One try; it also updates the fault strategy about the broker, and the doubts."""
        started_ms = self._timer()
        strict = self._strategy.preset == "4.x"
        isolation = strict  # what no branch below knows
        try:
            result = request.attempt(queue, timeout_ms)
            isolation = False
            return result
        except (RemotingError, MQClientError, MQBrokerError) as failure:
            if not isinstance(failure, MQClientError):
                isolation = True
            if verdict_of(failure).outcome is SendOutcome.UNKNOWN:
                request.doubts.append(failure)
            raise
        finally:
            self._strategy.update_fault_item(queue.broker_name, self._timer() - started_ms, isolation=isolation)

    def _capped(self, remaining_ms: int, *, is_last: bool) -> int:
        cap_ms = self._config.send_msg_max_timeout_per_request
        return cap_ms if -1 < cap_ms < remaining_ms and not is_last else remaining_ms

    def _remaining(self, request: Request) -> int:
        return int(request.timeout_ms - (self._timer() - request.begin_ms))

    def _wait_if_asked(self, failure: Exception, wait: FlowControlWait, request: Request) -> bool:
        """Wait if the broker's answer requires it. False, without a wait, if the time budget is too small for it."""
        if not isinstance(failure, MQBrokerError) or failure.response_code not in FLOW_CONTROL_CODES:
            return True
        wait_ms = wait.wait_ms(self._timer())
        if wait_ms >= self._remaining(request):
            return False
        if wait_ms:
            self._sleep(wait_ms)
        wait.advance(self._timer())
        return True

    def _is_retried(self, failure: Exception) -> bool:
        return not isinstance(failure, MQBrokerError) or failure.response_code in self._config.retry_response_codes

    def _is_retried_async(self, failure: Exception) -> bool:
        if isinstance(failure, MQBrokerError):
            return failure.response_code in FLOW_CONTROL_CODES & self._config.retry_response_codes
        return not isinstance(failure, RemotingTooMuchRequestError)

    def _next_async(self, request: Request, queue: MessageQueue) -> MessageQueue:
        """The queue for the next asynchronous try: the same queue. With async_retry_other_broker the strategy chooses
        the broker; there it is the queue of the same number, or the chosen one if that does not exist.
        """
        if not self._config.async_retry_other_broker:
            return queue
        chosen = self._strategy.select_one_message_queue(request.queues, request.index, queue.broker_name)
        same_number = MessageQueue(queue.topic, chosen.broker_name, queue.queue_id)
        return same_number if same_number in request.queues else chosen

    def _give_up(self, request: Request, brokers: Sequence[str], error: Exception) -> NoReturn:
        if isinstance(error, TimerNotSupportedError):
            raise error
        code = error.response_code if isinstance(error, MQBrokerError) else -1
        for kind, client_code in _CLIENT_CODES:
            if isinstance(error, kind):
                code = client_code
        cost_ms = int(self._timer() - request.begin_ms)
        raise MQClientError(
            f"Send [{len(brokers)}] times, still failed, cost [{cost_ms}]ms, Topic: {request.topic}, "
            f"BrokersSent: {list(brokers)}: {error}",
            code,
        ) from error


def _raise(error: ClientError, doubts: Sequence[ClientError]) -> NoReturn:
    """Raise the last error of a send; with the first doubt, if it says itself that nothing is stored."""
    if not doubts or verdict_of(error).outcome is SendOutcome.UNKNOWN:
        raise error
    raise with_doubt(error, doubts[0])
