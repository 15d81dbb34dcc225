"""The certificate of the gRPC port: from files, or a throw-away one that never touches the disk."""

from __future__ import annotations

import subprocess
from dataclasses import field
from pathlib import Path
from typing import Final, Self

from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

SELF_SIGNED: Final = "self-signed"
"""The word by which `--grpc-tls` asks for a throw-away certificate."""

_DAYS: Final = 30
_OPENSSL_S: Final = 30.0
_KEY_END: Final = b"-----END PRIVATE KEY-----\n"


@dataclass(frozen=True, slots=True)
class Certificate:
    """`chain` and `key` in PEM. The key is in no message and no repr."""

    chain: bytes
    key: bytes = field(repr=False)

    @classmethod
    def of_files(cls, chain: Path, key: Path) -> Self:
        """Read both. UsageError: a file cannot be read."""
        try:
            return cls(chain.read_bytes(), key.read_bytes())
        except OSError as error:
            raise UsageError(f"{error.filename}: cannot read the certificate or its key: {error.strerror}") from error

    @classmethod
    def self_signed(cls, host: str) -> Self:
        """A new certificate for an IP address, valid for 30 days. It exists in the memory of this process only, so
        clients must be told not to verify it, or be given `chain`.

        Raises:
            UsageError: there is no `openssl` command, or it failed.
        """
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-days", str(_DAYS), "-subj", "/CN=rmq", "-addext", f"subjectAltName=IP:{host},DNS:localhost"]
        command += ["-keyout", "-", "-out", "-"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_OPENSSL_S, check=True)
        except FileNotFoundError as error:
            text = "the openssl command, which makes self-signed certificates, is missing: install it, or give CERT,KEY"
            raise UsageError(text) from error
        except subprocess.SubprocessError as error:
            raise UsageError(f"openssl made no certificate for {host}: give CERT,KEY") from error
        key, end, chain = done.stdout.partition(_KEY_END)
        return cls(chain, key + end)
