"""A client of RocketMQ in any language as a process that follows instructions: JSON objects, one a line.

A line answers each of them: `{"value": ...}` or `{"error": text, "code": number or null}`. The process ends with its
input.

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

A message to send has `body` (or `bytes`: so many random ones), and may have `tags`, `keys`, `delayLevel`,
`deliverAtMs`, `order` (messages of one order stay in order) and `properties`. A place has `status`, `msgId`, and as far
as the client tells them `queueId`, `queueOffset`, `offsetMsgId`, `recallHandle`. A message that was got has `body`,
`tags`, `keys`, `msgId`, `attempt` (1 at first) and `properties`, and perhaps `queueId`, `queueOffset`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

LOG_LINES = 40
END_S = 20


class ProgramError(Exception):
    """The program ended; the end of what it wrote."""


class RefusedError(Exception):
    """The client could not do what it was told. `code`: what the server answered, if the client tells it."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.code = code


class Program:
    """A client that runs, for a `with` block."""

    def __init__(
        self, command: Sequence[str | Path], *, directory: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._name = Path(command[0]).name
        self._log = tempfile.TemporaryFile("w+", dir=directory)
        self._process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            text=True, encoding="utf-8", cwd=directory,
            env={**os.environ, "HOME": str(directory), **(environment or {})},
        )  # fmt: skip

    def ask(self, do: str, **fields: object) -> Any:
        """One instruction; the value of its answer. Raises `ProgramError` and `RefusedError`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do} | fields) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ProgramError(f"{self._name} ended at {do} {fields}:\n{self.log()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RefusedError(answer["error"], answer.get("code"))
        return answer["value"]

    def log(self) -> str:
        """The end of what the program wrote."""
        self._log.seek(0)
        return "\n".join(self._log.read().splitlines()[-LOG_LINES:])

    def close(self) -> None:
        """End the program."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(END_S)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._log.closed:
            error.add_note(self.log())
        self.close()
