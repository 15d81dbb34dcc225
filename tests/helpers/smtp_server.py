"""A mail server for tests: on loopback, with STARTTLS and AUTH PLAIN if it has a certificate; it keeps what it gets."""

from __future__ import annotations

import base64
import email
import email.policy
import socketserver
import ssl
import subprocess
import threading
from email.message import EmailMessage
from pathlib import Path

USER, PASSWORD = "kit", "kept-out-of-logs"


def certificate_for(host: str, directory: Path) -> tuple[Path, Path]:
    """A new certificate, which vouches for itself, and its key."""
    certificate, key = directory / f"{host}.crt", directory / f"{host}.key"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", f"/CN={host}"]
    words += ["-addext", f"subjectAltName=DNS:{host}"]
    subprocess.run(words, check=True, capture_output=True)
    return certificate, key


class SmtpServer(socketserver.ThreadingTCPServer):
    """`mails`: (recipients, mail). `answers` {command: line} overrides what a command is answered with."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, certificate: Path | None = None, key: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.mails: list[tuple[list[str], EmailMessage]] = []
        self.commands: list[str] = []
        self.answers: dict[str, str] = {}
        self.context: ssl.SSLContext | None = None
        if certificate is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(certificate, key)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Session(socketserver.StreamRequestHandler):
    server: SmtpServer

    def handle(self) -> None:
        recipients: list[str] = []
        is_encrypted = False
        self._say("220 test")
        while line := self.rfile.readline().decode().strip():
            command = line.split(" ", 1)[0].upper()
            self.server.commands.append(command)
            if command in self.server.answers:
                self._say(self.server.answers[command])
            elif command == "EHLO":
                extras = ["STARTTLS"] if self.server.context and not is_encrypted else ["AUTH PLAIN"]
                self._say("250-test", *(f"250-{extra}" for extra in extras), "250 OK")
            elif command == "STARTTLS":
                assert self.server.context is not None
                self._say("220 go ahead")
                try:
                    self.connection = self.server.context.wrap_socket(self.connection, server_side=True)
                except (ssl.SSLError, OSError):  # the client does not like the certificate
                    return
                self.rfile.close()
                self.wfile.close()
                self.setup_streams()
                is_encrypted = True
            elif command == "AUTH":
                given = base64.b64decode(line.split()[2]).decode().split("\0")[1:]
                self._say("235 welcome" if given == [USER, PASSWORD] and is_encrypted else "535 who are you")
            elif command == "RCPT":
                address = line[line.index("<") + 1 : line.index(">")]
                if address.startswith("gone@"):
                    self._say("550 no such person")
                else:
                    recipients.append(address)
                    self._say("250 OK")
            elif command == "DATA":
                self._say("354 go ahead")
                lines = []
                while (text := self.rfile.readline()) != b".\r\n":
                    lines.append(text.removeprefix(b".") if text.startswith(b"..") else text)
                mail = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
                assert isinstance(mail, EmailMessage)
                self.server.mails.append((recipients, mail))
                self._say("250 OK")
            elif command == "QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 OK")

    def setup_streams(self) -> None:
        self.rfile = self.connection.makefile("rb")
        self.wfile = socketserver._SocketWriter(self.connection)  # type: ignore[attr-defined]

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    def _say(self, *lines: str) -> None:
        self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())
