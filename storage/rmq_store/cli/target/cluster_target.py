"""A cluster as the target of a command: the options that name it and the way to it, and the opened cluster.

Options have the names of the Spark options of `format("rmq")`, in the spelling of a command line. Secrets are
references, as there: `env:NAME` or `file:PATH`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rmq_store.cli.shared.parameters import Seconds
from rmq_store.errors import StoreError, UsageError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.remoting.transport.settings import ClusterSettings, TlsSettings, parse_address_map

if TYPE_CHECKING:
    from rmq_store.cli.target.cluster.clients import ClusterConsuming, ClusterSender
    from rmq_store.cli.target.cluster.redrive import ClusterRedrive
    from rmq_store.cli.target.cluster.view import ClusterView
    from rmq_store.cli.target.view import Tell
    from rmq_store.remoting.cluster.cluster import Cluster
    from rmq_store.remoting.cluster.pull_request import PullFilter

Command = TypeVar("Command", bound=Callable[..., Any])

NAME_SERVER_VARIABLE: Final = "NAMESRV_ADDR"
"""The environment variable of mqadmin and of Java's clients (MixAll.NAMESRV_ADDR_ENV)."""
TOOLS_CONSUMER: Final = "TOOLS_CONSUMER"
"""The group of tools, which every broker makes for itself (MixAll.TOOLS_CONSUMER_GROUP)."""

# Key of a context's `meta`: the text that names the cluster, which the group has taken out of the arguments.
_TARGET = "rmq.cluster"
_TIMEOUT_S_MAX: Final = 3600.0


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """A cluster, the group under which a command pulls messages, and the brokers without which it does nothing."""

    settings: ClusterSettings
    pull_group: str = TOOLS_CONSUMER
    required_brokers: tuple[str, ...] = ()

    def open(self) -> Cluster:
        """Connect at the first call; a context manager.

        Raises:
            BrokerAwayError: a required broker is away, see `require_brokers`.
        """
        from rmq_store.remoting.admin.required_brokers import require_brokers
        from rmq_store.remoting.cluster.cluster import Cluster  # imports numpy: too slow for --help

        cluster = Cluster(self.settings)
        try:
            if self.required_brokers:
                require_brokers(cluster, self.required_brokers)
        except BaseException:
            cluster.close()
            raise
        return cluster

    @contextlib.contextmanager
    def view(self, tell: Tell) -> Iterator[ClusterView]:
        """As `Target`."""
        from rmq_store.cli.target.cluster.view import ClusterView

        with self.open() as cluster:
            yield ClusterView(cluster, self, tell)

    @contextlib.contextmanager
    def sender(self) -> Iterator[ClusterSender]:
        """As `Target`."""
        from rmq_store.cli.target.cluster.clients import ClusterSender

        with self.open() as cluster:
            yield ClusterSender(cluster)

    @contextlib.contextmanager
    def consuming(self, topic: str) -> Iterator[ClusterConsuming]:
        """As `Target`."""
        from rmq_store.cli.target.cluster.clients import ClusterConsuming
        from rmq_store.cli.target.cluster.queues import require_topic

        with self.open() as cluster:
            require_topic(cluster, topic)
            yield ClusterConsuming(cluster)

    @contextlib.contextmanager
    def redrive(self, group: str, **goals: Any) -> Iterator[ClusterRedrive]:
        """As `Target`."""
        from rmq_store.cli.target.cluster.redrive import ClusterRedrive

        with self.open() as cluster:
            yield ClusterRedrive(cluster, self, group, goals)

    def require_answers(self, missing: Mapping[str, StoreError]) -> None:
        """Raise BrokerAwayError if a required broker is among those that have not answered, with the error of each."""
        away = {name: str(missing[name]) for name in self.required_brokers if name in missing}
        if away:
            from rmq_store.remoting.admin.required_brokers import brokers_away

            raise brokers_away(away)

    def filter(self, subscription: str = "*", expression_type: str = "TAG") -> PullFilter:
        """The filter of a pull, under the group of the command."""
        from rmq_store.remoting.cluster.pull_request import PullFilter

        return PullFilter(group=self.pull_group, subscription=subscription, expression_type=expression_type)


class ClusterOption(click.Option):
    """An option of the way to a cluster. The help of a command lists them in a section of their own."""


class ClusterCommand(click.Command):
    """A command over a cluster."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of the command, and then those of the cluster."""
        own: list[tuple[str, str]] = []
        of_cluster: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                (of_cluster if isinstance(param, ClusterOption) else own).append(record)
        for title, records in (("Options", own), ("The cluster", of_cluster)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def remember_target(context: click.Context, text: str) -> None:
    """Keep the text that names the cluster for the command that `context` will run."""
    context.meta[_TARGET] = text


_REFERENCE: Final = "As env:NAME or file:PATH; never the secret itself."
_NAME_SERVER: Final = (
    "Name servers, `ns1:9876;ns2:9876` (a comma separates, too; `http://ns1:9876` is one), or the URL of an address "
    "server, which has a path."
)


def _option(*names: str, **more: Any) -> Callable[[Command], Command]:
    variable = "RMQ_" + names[0].removeprefix("--").replace("-", "_").upper()
    return click.option(*names, cls=ClusterOption, envvar=variable, show_envvar=True, **more)


_WAY: Final = (
    _option("--address-map", metavar="MAP", default="",
            help="Addresses to dial in place of those that brokers register: "
                 "10.0.0.3:10911=localhost:10911;..."),
    _option("--namespace", metavar="NAME", default="", help="Namespace of topics and groups at the brokers."),
    _option("--access-key", metavar="REFERENCE", default="", help=f"The access key of the ACL. {_REFERENCE}"),
    _option("--secret-key", metavar="REFERENCE", default="", help=f"Its secret key. {_REFERENCE}"),
    _option("--security-token", metavar="REFERENCE", default="", help=f"A security token. {_REFERENCE}"),
    _option("--tls", is_flag=True, help="Connect with TLS."),
    _option("--tls-ca-file", metavar="FILE", default="", help="Certificates (PEM) to trust instead of the system's."),
    _option("--tls-cert-file", metavar="FILE", default="", help="The client's certificate (PEM)."),
    _option("--tls-key-file", metavar="FILE", default="", help="Its private key (PEM), without a password."),
    _option("--tls-verify", metavar="BOOLEAN", type=bool, default=True,
            help="Whether certificates and names of servers are verified; true by default."),
    _option("--tls-server-name", metavar="NAME", default="",
            help="The name in the servers' certificates, if it is not the host of their address."),
    _option("--timeout", "timeout_s", metavar="SECONDS", type=Seconds(0.01, _TIMEOUT_S_MAX), default=3.0,
            help="Seconds that each request waits for its answer, or a duration (500ms, 1m); 3 by default."),
)  # fmt: skip
_OPTIONS: Final = (
    click.option("--store", "store_text", metavar="rmq://ADDRESSES", cls=ClusterOption, hidden=True),
    *_WAY[:-1],
    _option("--pull-group", metavar="GROUP", default=TOOLS_CONSUMER,
            help="The group under which messages are read, where an ACL gives rights to groups; TOOLS_CONSUMER by "
                 "default. Never one that has members."),
    _option("--required-brokers", metavar="NAMES", default="",
            help="Brokers, broker-a,broker-b, that must be there and answer; else nothing is read or changed. Without "
                 "this option the rows of a broker that is away are missing, and nobody can tell."),
    _WAY[-1],
)  # fmt: skip


def cluster_options(*, short_name: bool = True) -> Callable[[Command], Command]:
    """Add --json, and the options of the cluster; the command gets `target: ClusterTarget` and `as_json: bool`. Its
    class must be ClusterCommand. `short_name` False: -n means something else in this command.
    """
    names = ("-n", "--name-server", "--namesrvAddr") if short_name else ("--name-server", "--namesrvAddr")

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def with_target(**given: Any) -> Any:
            return command(target=_target_of(given), **given)

        wrapped: Any = with_target
        for option in reversed(_OPTIONS):
            wrapped = option(wrapped)
        # The group takes -n and --store out of the arguments (`commands.py`): here they are for the help.
        wrapped = click.option(
            *names, "name_server", cls=ClusterOption, metavar="ADDRESSES", help=_NAME_SERVER,
            envvar=NAME_SERVER_VARIABLE, show_envvar=True,
        )(wrapped)  # fmt: skip
        wrapped = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(wrapped)
        return wrapped  # type: ignore[no-any-return]

    return add


def way_options(command: Command) -> Command:
    """Add the options of the way to a cluster that another option of the command names. Its class must be
    ClusterCommand; `settings_of` takes them.
    """
    for option in reversed(_WAY):
        command = option(command)
    return command


def _target_of(given: dict[str, Any]) -> ClusterTarget:
    """The cluster of these options, which are taken out of `given`.

    Raises:
        UsageError: options that contradict each other, a malformed address, a secret instead of its reference.
    """
    context = click.get_current_context()
    named = given.pop("store_text"), given.pop("name_server")
    text = context.meta.get(_TARGET) or next(filter(None, named), "")
    settings = settings_of(text, given)
    return ClusterTarget(settings, given.pop("pull_group"), _broker_names(given.pop("required_brokers")))


def settings_of(text: str, given: dict[str, Any]) -> ClusterSettings:
    """The settings of the cluster that `text` names, and of the way to it: these options are taken out of `given`.
    Raises as `_target_of`.
    """
    tls = TlsSettings(
        ca_file=given.pop("tls_ca_file"),
        cert_file=given.pop("tls_cert_file"),
        key_file=given.pop("tls_key_file"),
        verify=given.pop("tls_verify"),
        server_name=given.pop("tls_server_name"),
    )
    has_tls = given.pop("tls")
    if not has_tls and tls != TlsSettings():
        raise click.UsageError("options of TLS need --tls", click.get_current_context())
    return ClusterSettings.of_text(
        text,
        address_map=parse_address_map(given.pop("address_map")),
        namespace=given.pop("namespace"),
        access_key=given.pop("access_key"),
        secret_key=given.pop("secret_key"),
        security_token=given.pop("security_token"),
        tls=tls if has_tls else None,
        timeout_ms=max(int(given.pop("timeout_s") * 1000), 1),
    )


def _broker_names(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    from rmq_store.remoting.admin.required_brokers import parse_broker_names

    try:
        return parse_broker_names(text)
    except UsageError as error:
        raise UsageError(f"--required-brokers: {error}") from error
