"""The declarative pipeline of examples/pipeline, run by Spark's own command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rmq_store import Message, Store

from .conftest import CONNECT_TIMEOUT, SMALL, connect_port

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(sys.executable).parent / "spark-pipelines"
EXAMPLE = "/tmp/rmq-pipeline"


def run(project: Path, scratch: Path) -> None:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("storage", "connector")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(scratch),
    }
    command = [COMMAND, "run", "--spec", project / "spark-pipeline.yml"]
    with connect_port():
        done = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "Run is COMPLETED" in done.stdout + done.stderr


@pytest.mark.spark
@pytest.mark.slow
@CONNECT_TIMEOUT
def test_a_declarative_pipeline_reads_as_a_group_and_writes_each_bill_once(tmp_path: Path) -> None:
    project = shutil.copytree(ROOT / "examples" / "pipeline", tmp_path / "pipeline")
    spec = project / "spark-pipeline.yml"
    text = spec.read_text(encoding="utf-8")
    assert EXAMPLE in text
    spec.write_text(text.replace(EXAMPLE, str(tmp_path)), encoding="utf-8")
    with Store.open(tmp_path / "store", create=True, config=SMALL) as store:
        store.create_topic("Orders", queue_count=1)
        store.send(Message("Orders", b"two teas", keys="ORD-1"))

    run(project, tmp_path)
    with Store.open(tmp_path / "store") as store:
        assert store.committed_offsets("cg_bills")[("Orders", 0)] == 1
        store.send(Message("Orders", b"one milk", keys="ORD-2"))
    run(project, tmp_path)

    with Store.open(tmp_path / "store", read_only=True) as store:
        bills = [
            (row["keys"], row["body"])
            for queue_id in range(4)
            for batch in store.read("Bills", queue_id, *store.queue_range("Bills", queue_id), columns=["keys", "body"])
            for row in batch.to_pylist()
        ]
    assert sorted(bills) == [("ORD-1", b"bill for two teas"), ("ORD-2", b"bill for one milk")]
