"""TLS: a context of the standard library's ssl module, made once for each process."""

from __future__ import annotations

import logging
import ssl

from rmq_store.errors import UsageError
from rmq_store.remoting.transport.settings import TlsSettings

_LOG = logging.getLogger(__name__)


def make_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return a context that verifies certificates and names, unless `verify` is False: that logs a warning.

    Raises:
        UsageError: a file cannot be read, is no PEM, has a password, or key and certificate do not fit.
    """
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
    except OSError as error:
        raise UsageError(f"TLS: cannot use {settings.ca_file} as certificates to trust: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.cert_file:
        try:
            # Without a function OpenSSL would ask for a password at the terminal.
            context.load_cert_chain(settings.cert_file, settings.key_file or None, password=lambda: "")
        except OSError as error:
            raise UsageError(
                f"TLS: cannot use {settings.cert_file} with {settings.key_file or 'the key in it'}: {error}. "
                "A key with a password cannot be used"
            ) from error
    if not settings.verify:
        _LOG.warning("TLS without verification: anybody between this process and the cluster can read and change all")
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
