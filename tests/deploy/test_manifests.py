"""The manifests of examples/deploy/kubernetes fit the schema of Kubernetes, each other, and docs/deploy.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import rmq_store
from pyspark_rmq.access import executor_check
from rmq_store import extension

from .page import PAGE, ROOT, messages

MANIFESTS = sorted((ROOT / "examples" / "deploy" / "kubernetes").glob("*.yaml"))
# Of this release; its schemas are a hundred megabytes, so no environment has them but one that this test makes.
VALIDATOR = "kubernetes-validate==1.37.0"
KUBERNETES = "1.37.0"


def documents(name: str) -> dict[str, Any]:
    """The documents of a manifest by their kind."""
    text = (ROOT / "examples" / "deploy" / "kubernetes" / name).read_text(encoding="utf-8")
    found = {document["kind"]: document for document in yaml.safe_load_all(text)}
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kubernetes_would_take_the_manifests(tmp_path: Path) -> None:
    """Strictly: no field that its schema does not know. A manifest with such a field is refused."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "tools"], check=True)
    pip = [tmp_path / "tools" / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", VALIDATOR]
    subprocess.run(pip, check=True)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(MANIFESTS[-1].read_text().replace("readOnly:", "readonly:"))

    def validated(manifest: Path) -> subprocess.CompletedProcess[str]:
        program = tmp_path / "tools" / "bin" / "kubernetes-validate"
        command = [program, "--strict", "-k", KUBERNETES, manifest]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    for manifest in MANIFESTS:
        done = validated(manifest)
        assert done.returncode == 0, done.stdout + done.stderr
    done = validated(wrong)
    assert done.returncode != 0 and "readonly" in done.stdout + done.stderr


def test_the_page_and_the_manifests_use_the_same_names() -> None:
    account = documents("account.yaml")
    (pod,) = documents("pod.yaml").values()
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert mounts.keys() == volumes.keys()
    secret = volumes["rocketmq"]["secret"]["secretName"]
    assert f"kubectl create secret generic {secret} --from-file=access --from-file=secret" in PAGE
    for key in ("access", "secret"):
        assert f'{key}Key="file:{mounts["rocketmq"]}/{key}"' in PAGE
    claim = volumes["checkpoints"]["persistentVolumeClaim"]["claimName"]
    assert account["PersistentVolumeClaim"]["metadata"]["name"] == claim
    assert f"bills.py ns1:9876 {mounts['checkpoints']}/" in PAGE
    name = account["ServiceAccount"]["metadata"]["name"]
    assert f"spark.kubernetes.authenticate.driver.serviceAccountName={name}" in PAGE
    binding = account["RoleBinding"]
    assert [subject["name"] for subject in binding["subjects"]] == [name]
    assert binding["roleRef"]["name"] == account["Role"]["metadata"]["name"]
    for manifest in MANIFESTS:
        assert f"examples/deploy/kubernetes/{manifest.name}" in PAGE


def test_the_messages_that_the_page_quotes_are_those_of_the_product(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of Spark are compared with Spark by `make deploy`, as far as a recipe meets them."""
    lack = extension.Lack("reason", "fix")
    monkeypatch.setattr(extension, "lack", lambda: lack)
    with pytest.raises(rmq_store.UsageError) as slow:
        executor_check.check(rmq_store.__version__, has_extension=True, lacks=())
    with pytest.raises(rmq_store.UsageError) as other:
        executor_check.check("0.2.0", has_extension=False, lacks=())
    monkeypatch.setattr(executor_check, "_has_warned", False)
    executor_check.SentToExecutors().__reduce__()
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "pyspark_rmq.access.executor_check", None)
        with pytest.raises(ImportError) as missing:
            executor_check.arrive(rmq_store.__version__, True, (), ("", ""))
    said = [str(missing.value), str(other.value), str(slow.value), *caplog.messages]
    quoted = messages()
    assert len(said) == 4
    for text, message in zip(said, quoted, strict=False):
        assert all(part in text for part in message.split("...")), (text, message)
