"""Numeric options whose values the engine can use."""

from __future__ import annotations

import math
from typing import Any, Final

import click

OFFSET: Final = click.IntRange(0, (1 << 63) - 1)
"""A queue offset: what 64 bits hold."""

DAY_S: Final = 86_400
"""Seconds: nobody watches with longer pauses."""


class FiniteRange(click.FloatRange):
    """A FloatRange without NaN. No limit excludes NaN, because it is neither smaller nor larger than any number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Raises click.BadParameter."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number
