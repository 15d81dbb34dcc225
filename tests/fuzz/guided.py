"""A program: `python -m fuzz.guided <target> <libFuzzer options>` executes one target, guided by coverage (atheris)."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["rmq_store", "pyspark_rmq"]):
    from fuzz.targets import TARGETS

from crash.protections import remove_as_told
from fuzz.decoders import complaint


def main() -> None:
    name = sys.argv.pop(1)
    target = next(target for target in TARGETS if target.name == name)

    def execute(data: bytes) -> None:
        wrong, _ = complaint(target, data)
        if wrong:
            raise RuntimeError(wrong)

    remove_as_told()
    atheris.Setup(sys.argv, execute)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
