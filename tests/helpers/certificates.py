"""Certificates for tests of TLS, made by the command `openssl`."""

from __future__ import annotations

import subprocess
from pathlib import Path


def openssl(*arguments: str | Path) -> None:
    """Run the command."""
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def make_authority(folder: Path, name: str) -> None:
    """Make NAME.pem and NAME.key, which sign."""
    openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
        f"/CN={name}", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem",
    )  # fmt: skip


def make_certificate(folder: Path, name: str, authority: str, names: str) -> None:
    """Make NAME.pem and NAME.key, for the alternative `names`, signed by `authority`."""
    (folder / "extensions").write_text(f"subjectAltName={names}\n")
    openssl(
        "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}", "-keyout",
        folder / f"{name}.key", "-out", folder / f"{name}.csr",
    )  # fmt: skip
    openssl(
        "x509", "-req", "-days", "2", "-in", folder / f"{name}.csr", "-CA", folder / f"{authority}.pem", "-CAkey",
        folder / f"{authority}.key", "-CAcreateserial", "-extfile", folder / "extensions", "-out",
        folder / f"{name}.pem",
    )  # fmt: skip
