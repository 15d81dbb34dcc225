"""All cases and curves: those of every module of bench/rows."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field

from bench import rows
from bench.case import GROUPS, Case
from bench.curve import Curve


@dataclass(slots=True)
class Catalogue:
    """In the order of the table. `missing`: {module that cannot be imported: why}."""

    cases: dict[str, Case] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def found() -> Catalogue:
    catalogue = Catalogue()
    cases: list[Case] = []
    for module_info in pkgutil.iter_modules(rows.__path__, "bench.rows."):
        try:
            module = importlib.import_module(module_info.name)
        except Exception as error:
            catalogue.missing[module_info.name] = f"{type(error).__name__}: {error}"
            continue
        cases += getattr(module, "CASES", ())
        for curve in getattr(module, "CURVES", ()):
            assert curve.name not in catalogue.curves, f"two curves are called {curve.name}"
            catalogue.curves[curve.name] = curve
    for case in sorted(cases, key=lambda case: GROUPS.index(case.group)):
        assert case.name not in catalogue.cases, f"two cases are called {case.name}"
        catalogue.cases[case.name] = case
    return catalogue
