"""SQL92 selectors over the properties of a message (control plane): a recursive-descent parser, no eval.

    or          = and *( "OR" and )
    and         = equality *( "AND" equality )
    equality    = comparison *( ( "=" / "<>" ) comparison / "IS" ["NOT"] "NULL" )
    comparison  = unary *( ( ">" / ">=" / "<" / "<=" ) unary / ["NOT"] test )
    test        = "BETWEEN" unary "AND" unary / "IN" "(" string *( "," string ) ")"
                / ( "CONTAINS" / "STARTSWITH" / "ENDSWITH" ) string
    unary       = *( "+" / "-" / "NOT" ) primary
    primary     = string / number / "TRUE" / "FALSE" / "NULL" / name / "(" or ")"

Sources: SelectorParser.jj, and ExpressionMessageFilter.java for a message that cannot be evaluated. As there:

    a missing property is NULL, and a NULL result does not match
    CONTAINS and its kin are FALSE for a missing property, NOT CONTAINS too
    `3 <> a` holds for a message without `a`, `a <> 3` does not; `a = b` holds where both are missing
    NOT binds to the next operand: `NOT a = 3` is `(NOT a) = 3` and never holds; write `NOT (a = 3)`
    a bare name is a condition that never holds, for properties are texts; write `flag = TRUE`
    a text where a number is needed: the message does not match, whatever else the selector says

Differences to Java: text after a complete expression is an error (Java's parser ignores it), 0L is 0, and length and
depth are limited.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmq_store.broker.filter import sql92_expression as build
from rmq_store.broker.filter.sql92_expression import DEPTH_MAX, Node, refuse
from rmq_store.broker.filter.sql92_lexer import Token, tokenize
from rmq_store.broker.filter.sql92_values import NotComparableError, float_constant, integer_constant
from rmq_store.errors import UsageError

LENGTH_MAX = 16_384


class Selector:
    """A compiled selector; safe for threads. Made by `compile_selector`."""

    def __init__(self, expression: str, node: Node) -> None:
        self.expression = expression
        self._evaluate = node.evaluate

    def matches(self, properties: Mapping[str, str]) -> bool:
        """True if a message with these properties (including TAGS and KEYS) is selected. Never raises."""
        try:
            return self._evaluate(properties) is True
        except NotComparableError:
            return False

    def __repr__(self) -> str:
        return f"Selector({self.expression!r})"


def compile_selector(expression: str) -> Selector:
    """Parse and check a selector.

    Raises:
        UsageError: not a text, over LENGTH_MAX characters, nested deeper than DEPTH_MAX, a syntax error, or operands
            that cannot be compared; names the position (in characters, from 0) and what is expected there.
    """
    if not isinstance(expression, str):
        raise UsageError(f"an SQL92 selector is a text, not {type(expression).__name__}")
    if len(expression) > LENGTH_MAX:
        raise UsageError(f"the SQL92 selector has {len(expression)} characters, more than {LENGTH_MAX}")
    return Selector(expression, _Parser(tokenize(expression)).parse())


class _Parser:
    """One pass over the tokens; a method for each rule of the grammar."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def parse(self) -> Node:
        node = build.condition(self._or())
        if self._token.kind != "end":
            raise self._expected("AND, OR, an operator or the end")
        return node

    def _or(self) -> Node:
        nodes = [self._and()]
        while self._take("OR"):
            nodes.append(self._and())
        return build.disjunction(nodes)

    def _and(self) -> Node:
        nodes = [self._equality()]
        while self._take("AND"):
            nodes.append(self._equality())
        return build.conjunction(nodes)

    def _equality(self) -> Node:
        left = self._comparison()
        while True:
            if symbol := self._take("=", "<>"):
                left = build.equality(left, symbol, self._comparison())
            elif self._take("IS"):
                negated = bool(self._take("NOT"))
                self._need("NULL")
                left = build.is_null(left, negated=negated)
            else:
                return left

    def _comparison(self) -> Node:
        left = self._unary()
        while True:
            if symbol := self._take(">", ">=", "<", "<="):
                left = build.comparison(left, symbol, self._unary())
                continue
            negated = bool(self._take("NOT"))
            if self._take("BETWEEN"):
                low = self._unary()
                self._need("AND")
                left = build.between(left, low, self._unary(), negated=negated)
            elif self._take("IN"):
                left = build.membership(left, self._strings(), negated=negated)
            elif keyword := self._take("CONTAINS", "STARTSWITH", "ENDSWITH"):
                left = build.text_test(left, keyword, self._string(), negated=negated)
            elif negated:
                raise self._expected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH behind NOT")
            else:
                return left

    def _unary(self) -> Node:
        token = self._token
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise refuse(token, f"the selector is nested deeper than {DEPTH_MAX}")
        if self._take("+"):
            node = self._unary()
        elif self._take("-"):
            node = build.minus(token, self._unary())
        elif self._take("NOT"):
            node = build.negation(self._unary())
        else:
            node = self._primary()
        self._depth -= 1
        return node

    def _primary(self) -> Node:
        token = self._token
        if self._take("("):
            node = self._or()
            self._need(")")
            return node
        if token.kind == "name":
            node = build.name(token)
        elif token.kind == "string":
            node = build.constant(token, token.text)
        elif token.kind in ("integer", "float"):
            node = build.constant(token, self._number(token))
        elif token.kind == "keyword" and token.text in ("TRUE", "FALSE", "NULL"):
            node = build.constant(token, {"TRUE": True, "FALSE": False}.get(token.text))
        else:
            raise self._expected("a property, a number, a string or (")
        self._next += 1
        return node

    def _number(self, token: Token) -> int | float:
        try:
            return integer_constant(token.text) if token.kind == "integer" else float_constant(token.text)
        except UsageError as error:
            raise refuse(token, str(error)) from error

    def _strings(self) -> list[str]:
        self._need("(")
        elements = [self._string()]
        while self._take(","):
            elements.append(self._string())
        self._need(")")
        return elements

    def _string(self) -> str:
        token = self._token
        if token.kind != "string":
            raise self._expected("a string in single quotes")
        self._next += 1
        return token.text

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> str | None:
        token = self._token
        if token.kind in ("keyword", "symbol") and token.text in texts:
            self._next += 1
            return token.text
        return None

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise self._expected(text)

    def _expected(self, what: str) -> UsageError:
        return refuse(self._token, f"expected {what}, found {self._token}")
