"""Who may ask a cluster, and how what is said is hidden: settings and files of released brokers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import ssl
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from helpers.cluster.java_process import HOST
from rmq_store.protocol.wire.command import RemotingCommand

# A day: no test lives longer.
DAYS = "1"
EXTENSIONS = f"""\
[server]
basicConstraints=CA:FALSE
subjectAltName=IP:{ipaddress.ip_address(HOST)},DNS:localhost
extendedKeyUsage=serverAuth,clientAuth
[client]
basicConstraints=CA:FALSE
extendedKeyUsage=clientAuth
"""


@dataclass(frozen=True, slots=True)
class Account:
    """Credentials, and what they may do: `SUB`, `PUB` or `PUB|SUB` for each topic and group."""

    access_key: str
    secret_key: str
    topics: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)

    def policy(self) -> dict[str, object]:
        """The rights in the words of ACL 2.0."""
        entries = [
            {"resource": f"{kind}:{name}", "actions": [right.title() for right in rights.split("|")],
             "sourceIps": [], "decision": "Allow"}
            for kind, named in (("Topic", self.topics), ("Group", self.groups))
            for name, rights in named.items()
        ]  # fmt: skip
        return {"policyType": "Custom", "entries": entries}

    def sign(self, command: RemotingCommand) -> None:
        """Add AccessKey and Signature, as AclUtils.java computes it."""
        fields = command.ext_fields
        fields["AccessKey"] = self.access_key
        content = "".join(fields[name] for name in sorted(fields)).encode() + command.body
        digest = hmac.new(self.secret_key.encode(), content, hashlib.sha1).digest()
        fields["Signature"] = base64.b64encode(digest).decode()


@dataclass(frozen=True, slots=True)
class Acl:
    """ACL 1.0 on 4.9.7, 2.0 on 5.5.0. The administrator's credentials are those of the brokers among themselves, too.

    `accounts` are known to 4.9.7 from the start; on 5.5.0 the administrator makes them (requests 3001 and 3006).
    """

    access_key: str = "administrator"
    secret_key: str = "kept-out-of-logs"
    accounts: tuple[Account, ...] = ()

    @property
    def administrator(self) -> Account:
        """May do everything."""
        return Account(self.access_key, self.secret_key)

    def broker_settings(self, version: str) -> dict[str, object]:
        if version.startswith("4."):
            return {"aclEnable": "true"}
        provider = "org.apache.rocketmq.auth.{0}.provider.{1}"
        own = {"accessKey": self.access_key, "secretKey": self.secret_key}
        return {
            "authenticationEnabled": "true",
            "authenticationProvider": provider.format("authentication", "DefaultAuthenticationProvider"),
            "authenticationMetadataProvider": provider.format("authentication", "LocalAuthenticationMetadataProvider"),
            "initAuthenticationUser": json.dumps({"username": self.access_key, "password": self.secret_key}),
            "innerClientAuthenticationCredentials": json.dumps(own),
            "authorizationEnabled": "true",
            "authorizationProvider": provider.format("authorization", "DefaultAuthorizationProvider"),
            "authorizationMetadataProvider": provider.format("authorization", "LocalAuthorizationMetadataProvider"),
        }

    def files(self, version: str) -> dict[str, str]:
        """What lies in a broker's conf directory. No address is trusted."""
        if not version.startswith("4."):
            return {}
        lines = ["globalWhiteRemoteAddresses: []", "accounts:"]
        for account in (self.administrator, *self.accounts):
            admin = str(account.access_key == self.access_key).lower()
            lines += [
                f"- accessKey: {account.access_key}",
                f"  secretKey: {account.secret_key}",
                "  whiteRemoteAddress:",
                f"  admin: {admin}",
                "  defaultTopicPerm: DENY",
                "  defaultGroupPerm: DENY",
            ]
            for name, rights in (("topicPerms", account.topics), ("groupPerms", account.groups)):
                lines += [f"  {name}:"] * bool(rights)
                lines += [f"  - '{resource}={right}'" for resource, right in rights.items()]
        tools = f"accessKey: {self.access_key}\nsecretKey: {self.secret_key}\n"
        return {"conf/plain_acl.yml": "\n".join(lines) + "\n", "conf/tools.yml": tools}


class Tls:
    """An authority of its own, a certificate for the servers on loopback and one for clients.

    All files lie in `directory`. Servers speak nothing but TLS. `client_certificates`: they demand one of the
    authority's.
    """

    def __init__(self, directory: Path, *, client_certificates: bool = False) -> None:
        self.client_certificates = client_certificates
        self.path = directory
        (self.path / "extensions").write_text(EXTENSIONS)
        self._openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", DAYS,
            "-subj", "/CN=authority of the tests", "-keyout", "ca.key", "-out", "ca.pem",
        )  # fmt: skip
        for name in ("server", "client"):
            self._certificate(name)

    def _certificate(self, name: str) -> None:
        # "genpkey" writes PKCS#8, the only kind that Netty reads.
        self._openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", f"{name}.key")
        self._openssl("req", "-new", "-key", f"{name}.key", "-subj", f"/CN={name}", "-out", f"{name}.csr")
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", DAYS,
            "-extfile", "extensions", "-extensions", name, "-out", f"{name}.pem",
        )  # fmt: skip

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], cwd=self.path, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"openssl {arguments[0]} failed: {done.stderr}")

    @property
    def ca_file(self) -> Path:
        """The authority's certificate."""
        return self.path / "ca.pem"

    @property
    def client_files(self) -> tuple[Path, Path]:
        """A client's certificate and its key."""
        return self.path / "client.pem", self.path / "client.key"

    def client_context(self) -> ssl.SSLContext:
        """Trusts the authority alone, checks the address, and shows the client's certificate."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        context.load_cert_chain(*map(str, self.client_files))
        return context

    def client_options(self) -> tuple[str, ...]:
        """Of a Java client on this machine."""
        certificate, key = self.client_files
        settings = {
            "test.mode.enable": "false",
            "enable": "true",
            "client.authServer": "true",
            "client.trustCertPath": self.ca_file,
            "client.keyPath": key,
            "client.certPath": certificate,
        }
        return tuple(f"-Dtls.{name}={value}" for name, value in settings.items())

    def files(self) -> dict[str, str]:
        names = ("ca.pem", "server.pem", "server.key")
        return {f"tls/{name}": (self.path / name).read_text() for name in names}

    def java_options(self) -> tuple[str, ...]:
        """Of a server that is a client of others as well."""
        place = "{directory}/tls"
        settings = {
            "test.mode.enable": "false",
            "server.mode": "enforcing",
            "server.keyPath": f"{place}/server.key",
            "server.certPath": f"{place}/server.pem",
            "server.trustCertPath": f"{place}/ca.pem",
            "server.authClient": str(self.client_certificates).lower(),
            "server.need.client.auth": "require" if self.client_certificates else "none",
            "enable": "true",
            "client.authServer": "true",
            "client.trustCertPath": f"{place}/ca.pem",
            "client.keyPath": f"{place}/server.key",
            "client.certPath": f"{place}/server.pem",
        }
        return tuple(f"-Dtls.{name}={value}" for name, value in settings.items())
