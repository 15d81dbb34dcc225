"""Files of a RocketMQ broker that hold passwords or secret keys. A backup leaves them out: this engine needs none.

    config/users, config/acls       users with their passwords, and rights: RocksDB of ACL 2.0
                                    (LocalAuthenticationMetadataProvider.java, LocalAuthorizationMetadataProvider.java)
    config/broker.properties        the broker's settings, initAuthenticationUser and
                                    innerClientAuthenticationCredentials among them (BrokerPathConfigHelper.java)
    conf/acl, plain_acl.yml         secret keys of ACL 1.0 (PlainPermissionManager.java), below rocketmq.home.dir, which
                                    may be the directory of the store
    tools.yml                       the secret key of mqadmin (MixAll.ACL_CONF_TOOLS_FILE)

Names of files may have an ending more: `.bak`, `.tmp`. A topic can be named `users` or `acl`, so directories count only
at these places; no topic has a dot in its name.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

_DIRECTORIES: Final = frozenset(
    PurePath(path) for path in ("config/users", "config/acls", "config/acl", "conf/acl", "acl")
)
_FILES: Final = ("plain_acl.", "tools.yml", "broker.properties")


def is_credential(path: PurePath) -> bool:
    """True for such a file or directory. `path`: below the directory of the store."""
    return path in _DIRECTORIES or path.name.startswith(_FILES)


def credential_of(path: PurePath) -> PurePath | None:
    """The directory or file of credentials that `path` is or lies in; None: in none."""
    return next((one for one in (*reversed(path.parents), path) if is_credential(one)), None)
