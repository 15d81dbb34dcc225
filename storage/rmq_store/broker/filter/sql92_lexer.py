"""Tokens of an SQL92 selector (control plane). Source: the token section of SelectorParser.jj.

    string   '...', a quote inside is doubled
    integer  0, or digits that do not begin with 0; an L behind them means nothing
    float    1.5  5.  .5  1E10  1.5e-3
    name     [a-zA-Z_$][a-zA-Z0-9_$]*, if it is no keyword; keywords in any case
    symbol   = <> > >= < <= ( ) , + -

Spaces and comments (`-- to the end of the line`, `/* */`) separate tokens; nothing has to. The last line cannot be a
comment: without a line end `--` is two signs.
"""

from __future__ import annotations

import re
from typing import Literal

from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

Kind = Literal["string", "integer", "float", "name", "keyword", "symbol", "end"]

KEYWORDS = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)

# Floats stand before integers, which begin in the same way: the longest token counts.
_TOKEN = re.compile(
    r"""
      (?P<space>   [ \t\n\r\f]+ | --[^\n\r]*[\n\r] | /\*[^*]*\*+(?:[^*/][^*]*\*+)*/ )
    | (?P<string>  '(?:[^']|'')*' )
    | (?P<float>   [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<integer> (?:0|[1-9][0-9]*)[lL]? )
    | (?P<name>    [a-zA-Z_$][a-zA-Z0-9_$]* )
    | (?P<symbol>  <> | >= | <= | [=<>(),+-] )
    """,
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Token:
    """`text` of a string is its value, of a keyword upper case; `position` is 0-based, in characters."""

    kind: Kind
    text: str
    position: int

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end"
        return f"the string {self.text[:40]!r}" if self.kind == "string" else repr(self.text[:40])


def tokenize(expression: str) -> list[Token]:
    """Return the tokens, the last one of kind "end".

    Raises:
        UsageError: a character that begins no token, or a string without its end; says where.
    """
    tokens = []
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            raise _no_token(expression, position)
        kind, text = match.lastgroup, match.group()
        assert kind is not None
        if kind == "string":
            tokens.append(Token("string", text[1:-1].replace("''", "'"), position))
        elif kind == "name":
            is_keyword = text.upper() in KEYWORDS
            tokens.append(Token("keyword" if is_keyword else "name", text.upper() if is_keyword else text, position))
        elif kind in ("integer", "float", "symbol"):
            tokens.append(Token(kind, text, position))  # type: ignore[arg-type]
        position = match.end()
    tokens.append(Token("end", "", position))
    return tokens


def _no_token(expression: str, position: int) -> UsageError:
    rest = expression[position : position + 20]
    is_open = rest.startswith("'")
    what = "a string without its closing quote" if is_open else f"{rest!r} is neither name, number nor sign"
    return UsageError(f"SQL92 selector, position {position}: {what}")
