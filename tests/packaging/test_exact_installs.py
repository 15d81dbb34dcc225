"""The first example of each page in an environment that has what the page says is installed, and nothing else.

The environment is made of links to the packages of this one: those that the extra needs, and what these need. So it
takes no network and a second. tests/packaging/test_documented_install.py does it with pip, for the README.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def installed(wanted: Iterable[str]) -> dict[str, metadata.Distribution]:
    """The distributions that `pip install` of these requirements brings, by name."""
    found: dict[str, metadata.Distribution] = {}
    asked: set[tuple[str, str]] = set()
    left = [Requirement(one) for one in wanted]
    while left:
        requirement = left.pop()
        for extra in sorted(requirement.extras) or [""]:
            if (requirement.name, extra) in asked:
                continue
            asked.add((requirement.name, extra))
            # Not that of an `.egg-info` in the checkout, which names no file below site-packages.
            (distribution,) = metadata.distributions(name=requirement.name, path=[sysconfig.get_path("purelib")])
            found[requirement.name.lower().replace("_", "-")] = distribution
            needed = [Requirement(line) for line in distribution.requires or []]
            left += [
                one
                for one in needed
                if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in (extra, ""))
            ]
    return found


class Installed:
    """A virtual environment of exactly these requirements; `pyspark-rmq` is this tree."""

    def __init__(self, path: Path, *requirements: str) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
        self.bin = path / "bin"
        site = next((path / "lib").glob("python3*")) / "site-packages"
        for name, distribution in installed(requirements).items():
            for top in {
                file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")
            }:
                target = Path(str(distribution.locate_file(top)))
                if not (site / top).exists() and (name != "pyspark-rmq" or top.endswith(".dist-info")):
                    (site / top).symlink_to(target)
            for entry in distribution.entry_points:
                if entry.group == "console_scripts":
                    module, _, attribute = entry.value.partition(":")
                    script = self.bin / entry.name
                    script.write_text(
                        f"#!{self.bin}/python\nimport sys\nfrom {module} import {attribute}\nsys.exit({attribute}())\n"
                    )
                    script.chmod(0o755)
        for root, package in (("storage", "rmq_store"), ("connector", "pyspark_rmq")):
            (site / package).symlink_to(ROOT / root / package)

    def run(self, scratch: Path, *command: object, cwd: Path | None = None) -> str:
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK", "SPARK", "PYTEST"))}
        environment = outside | {
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_SUBMIT_ARGS": "--master local[2] --driver-memory 1g --conf spark.ui.enabled=false pyspark-shell",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(scratch),
        }
        done = subprocess.run(
            [str(part) for part in command], cwd=cwd or scratch, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-4000:]}"
        return done.stdout


def first_block(page: Path) -> str:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[0]


def test_the_environment_has_nothing_else(tmp_path: Path) -> None:
    bare = Installed(tmp_path / "env", "pyspark-rmq")
    absent = "pyspark pandas sqlalchemy kafka grpc pytest hypothesis freezegun".split()
    code = f"import importlib.util; print([n for n in {absent!r} if importlib.util.find_spec(n)])"
    assert bare.run(tmp_path, "python", "-c", code) == "[]\n"
    assert bare.run(tmp_path, "rmq", "--version").startswith("rmq")


@pytest.mark.parametrize(
    ("page", "requirements"),
    [
        ("clients.md", ["pyspark-rmq"]), ("server.md", ["pyspark-rmq"]), ("reliable.md", ["pyspark-rmq[reliable]"]),
    ],
)  # fmt: skip
def test_the_first_example_of_a_page_runs_with_what_the_page_installs(
    tmp_path: Path, page: str, requirements: list[str]
) -> None:
    block = first_block(DOCS / page)
    path = tmp_path / "example.py"
    if ">>>" in block:
        path.with_suffix(".txt").write_text(block, encoding="utf-8")
        block = "import doctest, sys\nsys.exit(doctest.testfile('example.txt', module_relative=False).failed)\n"
    path.write_text(block, encoding="utf-8")
    Installed(tmp_path / "env", *requirements).run(tmp_path, "python", path)


def test_the_programs_of_an_extra_say_themselves_what_they_need(tmp_path: Path) -> None:
    """examples/reliable/orders.py, with the extra that its first lines name."""
    text = (ROOT / "examples" / "reliable" / "orders.py").read_text(encoding="utf-8")
    assert "pip install '.[reliable]'" in text
    Installed(tmp_path / "env", "pyspark-rmq[reliable]").run(tmp_path, "python", ROOT / "examples/reliable/orders.py")


@pytest.mark.parametrize(("extra", "command"), [("kafka", ["rmq", "mirror", "kafka-to-rmq", "--help"]),
                                                ("reliable", ["rmq", "resend", "--help"])])  # fmt: skip
def test_the_commands_of_an_extra_load_with_it(tmp_path: Path, extra: str, command: list[str]) -> None:
    assert "Usage" in Installed(tmp_path / "env", f"pyspark-rmq[{extra}]").run(tmp_path, *command)


def test_a_server_for_grpc_starts_with_its_extra(tmp_path: Path) -> None:
    code = """
from rmq_store.server.broker_server import BrokerServer
with BrokerServer("store", create=True, grpc_port=0) as server:
    print(server.grpc_address)
"""
    assert "127.0.0.1:" in Installed(tmp_path / "env", "pyspark-rmq[grpc]").run(tmp_path, "python", "-c", code)


def test_the_fixtures_of_the_server_need_pytest_only(tmp_path: Path) -> None:
    """docs/server.md, "In tests": the service is one of our own clients, which takes `rmq_broker.url`."""
    page = (DOCS / "server.md").read_text(encoding="utf-8")
    (example,) = re.findall(
        r"^    (def test_an_order_that_nobody_can_read\(rmq_broker\):\n(?:    .*\n)+)", page, re.MULTILINE
    )
    example = "\n".join(line.removeprefix("    ") for line in example.splitlines())
    service = """
import pytest
from rmq_store.client import *

running = []

def start_my_service(address):
    def listen(messages, context):
        raise ValueError("no JSON")
    first = PushConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = PushConsumer("my_group", address, first)
    consumer.subscribe("Orders")
    consumer.register_message_listener(MessageListenerConcurrently(listen))
    consumer.start()
    running.append(consumer)

@pytest.fixture(autouse=True)
def ends_before_its_broker(rmq_broker):
    yield
    for consumer in running:
        consumer.shutdown()

"""
    path = tmp_path / "test_service.py"
    path.write_text(service + example, encoding="utf-8")
    out = Installed(tmp_path / "env", "pyspark-rmq", "pytest").run(tmp_path, "python", "-m", "pytest", "-q", path)
    assert "1 passed" in out


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_job_and_its_test_run_as_their_first_lines_say(tmp_path: Path) -> None:
    """It ended with "Missing required plugins: pytest-timeout, pytest-xdist": those of this repository's own tests."""
    example = ROOT / "examples" / "test_orders_job.py"
    (install, command) = re.findall(
        r"^    (pip install .*|pytest .*)$", example.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert install == "pip install '.[spark]' pytest"
    there = Installed(tmp_path / "env", "pyspark-rmq[spark]", "pytest")
    words = command.split()
    out = there.run(tmp_path, "python", "-m", words[0], "-q", "-p", "no:cacheprovider", *words[1:], cwd=ROOT)
    assert "1 passed" in out
