"""Distribution `pyspark-rmq`: two source roots, two packages.

`storage/` and `connector/` are roots, not packages: top-level packages of those names would collide in site-packages
with modules of other people.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from setuptools import Extension, find_packages, setup
from setuptools.command import editable_wheel

HERE = Path(__file__).parent.resolve()
SOURCE_ROOTS = ("storage", "connector")
PACKAGE_DIR = {
    package: f"{root}/{package.replace('.', '/')}"
    for root in SOURCE_ROOTS
    for package in find_packages(str(HERE / root))
}

# Read, not imported: what the package imports is not installed yet.
ENGINE = (HERE / "storage" / "rmq_store" / "__init__.py").read_text(encoding="utf-8")
(VERSION,) = re.findall(r'^__version__ = "([^"]+)"$', ENGINE, re.MULTILINE)

RELIABLE = ["sqlalchemy>=2.0,<3", "redis>=5"]
# Its compressions and its checksum are extras of its own: without them a topic in zstd cannot be read.
KAFKA = ["kafka-python[crc32c,lz4,snappy,zstd]>=3.0.12,<4"]
# The definitions are built at run time, so there is no generated code whose version must fit.
GRPC = ["grpcio>=1.67,<2", "protobuf>=5.28"]
NOTEBOOK = ["ipykernel>=6.29", "matplotlib>=3.8", "nbclient>=0.10"]

EXTRAS = {
    # PySpark itself does not ask for pandas; its mapInArrow, on which `consume` stands, does.
    "spark": ["pyspark>=4.0", "pandas>=2.2"],
    "grpc": GRPC,
    "kafka": KAFKA,
    # The driver is the user's choice: SQLite's comes with Python.
    "reliable": RELIABLE,
    "notebook": NOTEBOOK,
    # No wheel for every Python that we run on, so no part of `dev`.
    "fuzz": ["atheris>=3.0"],
    "dev": [
        *GRPC,
        *KAFKA,
        *NOTEBOOK,
        *RELIABLE,
        "aiomysql>=0.2",
        "aiosqlite>=0.20",
        # Drivers that the kit supports beside psycopg.
        "asyncpg>=0.30",
        "build>=1.2",
        "freezegun>=1.5",
        "greenlet>=3.1",
        "hypothesis>=6.100",
        "mypy>=2",
        "pandas>=2.2",
        "prometheus-client>=0.21",
        "psycopg[binary]>=3.2",
        "psycopg2-binary>=2.9.10",
        "pymysql>=1.1",
        "pyspark[connect,pipelines]>=4.2",
        "pytest>=9",
        "pytest-timeout>=2.4",
        "pytest-xdist>=3.8",
        # The official client over gRPC, a peer of the tests.
        "rocketmq-python-client>=5.1.2",
        "ruff>=0.17",
        "setuptools>=77",
        "time-machine>=2.16",
        "wheel>=0.45",
    ],
}

# Optional: where it cannot be compiled, everything works without it (rmq_store/format/bytes/native.py). One build
# serves all versions of Python that we run on.
NATIVE = HERE / "storage" / "rmq_store" / "native"
EXTENSION = Extension(
    "rmq_store._native",
    sources=sorted(path.relative_to(HERE).as_posix() for path in NATIVE.glob("*.c")),
    depends=sorted(path.relative_to(HERE).as_posix() for path in NATIVE.glob("*.h")),
    extra_compile_args=["-std=c99", "-O3", "-Wall", "-Wextra"],
    py_limited_api=True,
    optional=True,
)


class EditableOnPath(editable_wheel.editable_wheel):
    """`pip install -e .` as plain path entries: one line for each source root.

    Left alone, setuptools serves a project with several roots through an import hook. Imports work with it, but Spark
    finds data sources by listing the modules on sys.path (`pkgutil.iter_modules()`), and what a hook serves is on no
    list: `format("rmq")` would then be unknown in editable installs only. Should setuptools stop calling this private
    method, the mode asked for below (strict, a tree of links) still leaves the packages on a path.
    """

    def _select_strategy(self, name: str, tag: str, build_lib: Any) -> Any:
        return editable_wheel._StaticPth(self.distribution, name, [HERE / root for root in SOURCE_ROOTS])


setup(
    name="pyspark-rmq",
    version=VERSION,
    description="Apache RocketMQ's message store as an embedded Python engine, and a PySpark data source over it",
    long_description=(HERE / "README.md").read_text(encoding="utf-8") if (HERE / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: Database :: Database Engines/Servers",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    packages=sorted(PACKAGE_DIR),
    package_dir=PACKAGE_DIR,
    package_data={"rmq_store": ["py.typed", "*.pyi"], "pyspark_rmq": ["py.typed"]},
    install_requires=["numpy>=2.0", "pyarrow>=18.0", "click>=8.1", "rich>=13.7"],
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": ["rmq = rmq_store.__main__:main"],
        "pytest11": ["rmq = pyspark_rmq.testing", "rmq-broker = rmq_store.testing"],
        # Commands of the connector in `rmq`: rmq_store/cli/plugin_loader.py.
        "rmq.commands": ["checkpoint = pyspark_rmq.checkpoint.command:PLUGIN"],
    },
    ext_modules=[EXTENSION],
    cmdclass={"editable_wheel": EditableOnPath},
    options={"editable_wheel": {"mode": "strict"}, "bdist_wheel": {"py_limited_api": "cp311"}},
)
