"""Signatures: the values that a real 4.9 client has sent."""

from __future__ import annotations

import pytest

from rmq_store.protocol.wire.signature import is_signed_with, sign, signature_of

VECTORS = [
    ({"topic": "TBW102"}, "/u5P/wZUbhjanu4LM/UzEdo2u2I="),
    ({}, "Ou1T58RIcyZWaTIwzkhJZWn/Zvs="),
    (
        {
            "_UNIQUE_KEY_QUERY": "false", "beginTimestamp": "0", "topic": "TopicJ", "maxNum": "64",
            "endTimestamp": "9223372036854775807", "key": "k1",
        },
        "iHJtQ0Krl6wOxYQbgqZ8OYA5gTo=",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "signature"), VECTORS)
def test_a_signature_is_the_one_of_a_java_client(fields: dict[str, str], signature: str) -> None:
    signed = sign(fields, b"", "rocketmq2", "12345678")
    assert signed == {**fields, "AccessKey": "rocketmq2", "Signature": signature}
    assert is_signed_with(signed, b"", "12345678")


def test_every_field_the_token_and_the_body_count() -> None:
    signed = sign({"a": "1", "b": "2"}, b"body", "ak", "sk", "token")
    assert signed["SecurityToken"] == "token"
    assert sign(signed, b"body", "ak", "sk", "token") == signed
    for name in ("a", "AccessKey", "SecurityToken", "Signature"):
        assert not is_signed_with({**signed, name: "x"}, b"body", "sk")
    assert not is_signed_with(signed, b"Body", "sk")
    assert not is_signed_with(signed, b"body", "SK")
    assert not is_signed_with({"a": "1"}, b"body", "sk")
    assert "SecurityToken" not in sign({}, b"", "ak", "sk")


def test_a_request_of_4_9_3_does_not_sign_what_it_asks_by() -> None:
    fields = {"key": "k", "_UNIQUE_KEY_QUERY": "true"}
    old = sign(fields, b"", "ak", "sk", version=399)
    assert old["Signature"] == sign({"key": "k"}, b"", "ak", "sk")["Signature"]
    assert old["_UNIQUE_KEY_QUERY"] == "true"
    assert is_signed_with(old, b"", "sk", 399) and not is_signed_with(old, b"", "sk", 400)


def test_texts_that_are_no_utf_8_have_a_signature_too() -> None:
    assert signature_of({"a": "\ud800"}, b"", "k") == signature_of({"a": "?"}, b"", "k")
    assert not is_signed_with({"Signature": "ü\ud800"}, b"", "k")
