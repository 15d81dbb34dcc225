"""OpenMetrics 1.0: what a metric is, its samples, and their text.

    # HELP <name> <one line>
    # TYPE <name> gauge | counter
    # UNIT <name> <unit>                            only if it has one; the name ends in it
    <name>{<label>="<value>",...} <number>          of a counter: <name>_total
    # EOF                                           once, at the end

Prometheus' older text (0.0.4) has neither UNIT nor EOF, and names a counter with its `_total`. Source: OpenMetrics.md
of github.com/OpenObservability/OpenMetrics; Prometheus, "Exposition formats".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from rmq_store.lazy.dataclasses import dataclass

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
CLASSIC_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_HELP = re.compile(r'[^\\"\n]+')
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric and its meaning in one line (`help`). `name`: without the `_total` of a counter."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""

    def __post_init__(self) -> None:
        assert _NAME.fullmatch(self.name), self.name
        assert all(_NAME.fullmatch(label) for label in self.labels), self.labels
        assert _HELP.fullmatch(self.help), self.help
        assert not self.unit or self.name.endswith(f"_{self.unit}"), (self.name, self.unit)
        assert not self.name.endswith(("_total", "_created", "_info", "_count", "_sum", "_bucket")), self.name

    @property
    def sample_name(self) -> str:
        """The name of its samples, which queries use."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


class MetricFamily(NamedTuple):
    """A metric and its samples: the values of its labels, in their order ("": without this label), and a number."""

    metric: Metric
    samples: Sequence[tuple[tuple[str, ...], float]]


def openmetrics_text(families: Iterable[MetricFamily], *, classic: bool = False) -> str:
    """The families as text, in their order; `classic`: Prometheus' older format. The samples of a family differ in
    their labels.
    """
    lines: list[str] = []
    for metric, samples in families:
        name = metric.sample_name if classic else metric.name
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        if metric.unit and not classic:
            lines.append(f"# UNIT {name} {metric.unit}")
        lines += [f"{metric.sample_name}{_labels(metric, values)} {_number(number)}" for values, number in samples]
    return "\n".join([*lines, *([] if classic else ["# EOF"]), ""])


def _labels(metric: Metric, values: tuple[str, ...]) -> str:
    pairs = [
        f'{label}="{value.translate(_ESCAPED)}"' for label, value in zip(metric.labels, values, strict=True) if value
    ]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _number(number: float) -> str:
    assert math.isfinite(number)
    return repr(number)
