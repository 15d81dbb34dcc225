"""JSON as fastjson writes it: keys may stand without quotes. A recursive descent over the tokens.

The reader of each kind of text says what numbers, strings and keys become:

    config files   format/tables/config_json.py   integers as keys; spelling is kept: the file is written again
    bodies         protocol/bodies/java_json.py   integers, words and objects as keys; spelling does not matter

The verifier and `kinds` read their few members by themselves, on purpose: they judge stores that this reader refuses.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

DEPTH_MAX: Final = 64

# Possessive: a string without an end fails in linear time.
_TOKEN: Final = re.compile(
    r"""[ \t\r\n]*+(?:
        ([{}\[\]:,])
      | ("(?:[^"\\\x00-\x1f]++|\\["\\/bfnrtu])*+")
      | (-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+(?![0-9A-Za-z_.]))
      | (true|false|null)(?![0-9A-Za-z_])
      | (\Z)
    )""",
    re.VERBOSE | re.ASCII,
)
MARK, STRING, NUMBER, WORD = 1, 2, 3, 4
_WORDS: Final = {"true": True, "false": False, "null": None}


class FastjsonReader:
    """`kind` and `token` are the token that comes next, `position` is behind it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self.kind = 0
        self.token = ""
        self.advance()

    # -- what a kind of text decides

    def error(self, reason: str) -> Exception:
        """The error for a text that cannot be read."""
        raise NotImplementedError

    def integer(self, token: str) -> Any:
        """The value of a number without fraction and exponent. ValueError: it is none."""
        raise NotImplementedError

    def real(self, token: str) -> Any:
        """The value of another number. ValueError: it is none."""
        raise NotImplementedError

    def string(self) -> str:
        """The string that comes next."""
        if "\\" not in self.token:
            return self.token[1:-1]
        try:
            text: str = json.loads(self.token)
        except ValueError:
            self.fail("a broken escape in a string")
        return text

    def key(self, depth_left: int) -> Any:
        """Take a key, which can be hashed."""
        raise NotImplementedError

    def members(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        """An object of its members in their order; the last one of a name counts."""
        return dict(pairs)

    # -- the descent

    def document(self) -> Any:
        """The one value of the text."""
        value = self.value(DEPTH_MAX)
        if self.kind <= WORD:
            self.fail("text after the end of the value")
        return value

    def fail(self, reason: str) -> NoReturn:
        """Raise `error` about the token that comes next."""
        raise self.error(f"at character {self._position - len(self.token)}: {reason}")

    def advance(self) -> None:
        """Go to the next token."""
        match = _TOKEN.match(self._text, self._position)
        if match is None:
            self.token = ""
            self.fail("not a token of JSON")
        self.kind = match.lastindex or 0
        self.token = match[self.kind]
        self._position = match.end()

    def value(self, depth_left: int) -> Any:
        """Take a value that has at most `depth_left` levels."""
        kind, token = self.kind, self.token
        if kind == MARK and token in "{[":
            if depth_left == 0:
                self.fail(f"nested deeper than {DEPTH_MAX}")
            self.advance()
            return self._object(depth_left - 1) if token == "{" else self._list(depth_left - 1)
        value: Any
        if kind == STRING:
            value = self.string()
        elif kind == NUMBER:
            value = self.number()
        elif kind == WORD:
            value = _WORDS[token]
        else:
            self.fail("a value is expected")
        self.advance()
        return value

    def number(self) -> Any:
        """The number that comes next."""
        try:
            return self.integer(self.token) if self.token.lstrip("-").isdigit() else self.real(self.token)
        except ValueError as error:
            self.fail(str(error))

    def _object(self, depth_left: int) -> dict[Any, Any]:
        pairs: list[tuple[Any, Any]] = []
        if self._ends("}"):
            return {}
        while True:
            key = self.key(depth_left)
            if self.kind != MARK or self.token != ":":
                self.fail("a colon is expected")
            self.advance()
            pairs.append((key, self.value(depth_left)))
            if self._ends("}"):
                return self.members(pairs)
            self._comma()

    def _list(self, depth_left: int) -> list[Any]:
        elements: list[Any] = []
        if self._ends("]"):
            return elements
        while True:
            elements.append(self.value(depth_left))
            if self._ends("]"):
                return elements
            self._comma()

    def _ends(self, mark: str) -> bool:
        if self.kind != MARK or self.token != mark:
            return False
        self.advance()
        return True

    def _comma(self) -> None:
        if self.kind != MARK or self.token != ",":
            self.fail("a comma or the end is expected")
        self.advance()
