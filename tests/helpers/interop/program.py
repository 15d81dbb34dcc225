"""A client of RocketMQ in any language as a process that follows instructions: JSON objects, one a line.

A line answers each of them: `{"value": ...}` or `{"error": text, "code": what the server answered}`. The code is a
number, the name of a status, or null if the client does not tell it. The process ends with its input. Variables of its
environment: CLIENT_TIMEOUT_MS is the timeout of a request, and with CLIENT_TLS the client speaks TLS.

    send         {topic, messages, mode?, trace?}     mode "sync", "async" or "one-way" -> places (one-way: none)
    batch        {topic, messages}                    one request for all of them -> [place]
    recall       {topic, handle}                      takes a timer back
    transaction  {group, topic, messages, end, check} "commit", "rollback", "unknown": the end of the local
                                                      transaction, and the producer's answer when it is asked -> [place]
    checked      {}                                   -> how often the producer was asked
    request      {topic, messages}                    -> the body of the reply
    consume      {group, topic, mode, tags?, sql?, fails?, replies?}  starts a consumer: "concurrent", "ordered",
                                                        "broadcast", "lite", "pop" or "simple"
    received     {count, timeoutMs}                   -> what it has got, as soon as there are so many
    leave        {}                                   the consumer ends
    find         {by, topic, text}                    by "key" or "id" -> messages
    raw          {code, fields}                       any request to the broker -> its {code, remark}

A message to send has `body` (or `bytes`: so many random ones), and may have `tags`, `keys`, `delayLevel`,
`deliverAtMs`, `order` (messages of one order stay in order) and `properties`. A place has `status`, `msgId`, and as far
as the client tells them `queueId`, `queueOffset`, `offsetMsgId`, `recallHandle`. A message that was got has `body`,
`tags`, `keys`, `msgId`, `attempt` (1 at first) and `properties`, and perhaps `queueId`, `queueOffset`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from helpers.line_program import LineProgram
from rmq_store.server.grpc_definitions.enums import Code

_ALL: Final = 1_000_000


class RefusedError(Exception):
    """The client could not do what it was told. `code`: what the server answered, if the client tells it."""

    def __init__(self, text: str, code: int | str | None) -> None:
        super().__init__(text)
        self.code = Code[code].value if isinstance(code, str) else code


class Program(LineProgram):
    """A client that runs, for a `with` block."""

    def __init__(
        self, name: str, command: Sequence[str | Path], home: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(name, command, home, environment)
        self._home = home

    def ask(self, do: str, **fields: object) -> Any:
        """One instruction; the value of its answer. Raises `ProgramError` and `RefusedError`."""
        told = json.dumps({"do": do} | fields)
        self.write_line(told)
        answer = json.loads(self.read_line(told))
        if "error" in answer:
            raise RefusedError(answer["error"], answer.get("code"))
        return answer["value"]

    def logged(self) -> str:
        """All that the client wrote: to its error output, and to files of its home."""
        files = [file.read_text(errors="replace") for file in sorted(self._home.rglob("*.log*")) if file.is_file()]
        return "\n".join([self.log(lines=_ALL), *files])
