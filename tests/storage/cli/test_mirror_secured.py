"""Both mirrors and a Kafka that takes only TLS connections of users who say their passwords (SASL_SSL, PLAIN)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from bench.kafka_broker import broker
from helpers import kafka_server
from helpers.server_fixtures import require
from rmq_store import Message, Store

Run = Callable[..., Result]

SECRET = "not-to-be-seen"
JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" password="b" user_broker="b" '
    f'user_mirror="{SECRET}";'
)


def secured(directory: Path) -> tuple[str, ...]:
    """Settings of the broker, and its certificate as `cert.pem`."""
    key, certificate, store = directory / "key.pem", directory / "cert.pem", directory / "broker.p12"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, "-keyout", key]
    subprocess.run([*made, "-out", certificate], check=True, capture_output=True)
    packed = ["openssl", "pkcs12", "-export", "-inkey", key, "-in", certificate, "-out", store]
    subprocess.run([*packed, "-passout", "pass:store"], check=True, capture_output=True)
    return (
        "listener.security.protocol.map=PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name=PLAINTEXT",
        "sasl.enabled.mechanisms=PLAIN",
        "sasl.mechanism.inter.broker.protocol=PLAIN",
        f"listener.name.plaintext.plain.sasl.jaas.config={JAAS}",
        f"ssl.keystore.location={store}",
        "ssl.keystore.type=PKCS12",
        "ssl.keystore.password=store",
        f"ssl.truststore.location={certificate}",
        "ssl.truststore.type=PEM",
        "transaction.state.log.replication.factor=1",
        "transaction.state.log.min.isr=1",
    )


@pytest.mark.slow
def test_mirrors_work_with_tls_and_a_password_and_show_it_to_nobody(
    run: Run, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(kafka_server.kafka())
    root = scratch / "store"
    with Store.open(root, create=True) as store:
        store.create_topic("Orders", queue_count=1)
        for number in range(3):
            store.send(Message("Orders", b"order %d" % number))
    monkeypatch.setenv("MIRROR_PASSWORD", SECRET)
    monkeypatch.setenv("WRONG_PASSWORD", "wrong-and-not-to-be-seen")
    with broker(scratch, *secured(scratch)) as address:

        def mirror(direction: str, *arguments: str, password: str = "MIRROR_PASSWORD") -> Result:
            settings = {
                "security_protocol": "SASL_SSL", "ssl_cafile": str(scratch / "cert.pem"), "sasl_mechanism": "PLAIN",
                "sasl_plain_username": "mirror", "sasl_plain_password": f"env:{password}",
            }  # fmt: skip
            words = [word for name, value in settings.items() for word in ("--kafka", f"{name}={value}")]
            at = ("--bootstrap-servers", address, "--cluster-id", "rmq-tests", "--once", "--json", *words)
            return run("mirror", direction, "--create-topics", *arguments, *at, store=root)

        out = mirror("rmq-to-kafka", "--name", "out", "--topics", "Orders", "--replication-factor", "1")
        assert out.exit_code == 0, out.output
        back = mirror("kafka-to-rmq", "--name", "in", "--topics", "Orders", "--rename", "Orders=Copies")
        assert back.exit_code == 0, back.output
        assert json.loads(back.stdout.splitlines()[-1])["copied"] == 3
        refused = mirror("kafka-to-rmq", "--name", "other", "--topics", "Orders", password="WRONG_PASSWORD")
        assert refused.exit_code != 0
        # kafka-python drops the broker's answer if it finds it together with the close.
        assert "Authentication failed" in refused.output or "refuse the user, the password" in refused.output
        assert not any("not-to-be-seen" in result.output for result in (out, back, refused))
    with Store.open(root, read_only=True) as store:
        [limits] = store.queue_ranges("Copies").values()
        bodies = [body for batch in store.read("Copies", 0, *limits) for body in batch.column("body").to_pylist()]
    assert bodies == [b"order 0", b"order 1", b"order 2"]
