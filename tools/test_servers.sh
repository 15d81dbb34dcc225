#!/bin/sh
# The servers that the tests of rmq_store.reliable start for themselves: PostgreSQL, PgBouncer, MariaDB, Redis.
#
#   test_servers.sh check     says what is missing, one line, exit code 1
#   test_servers.sh install   installs what is missing (Debian, Ubuntu; root)
#
# The tests need the programs only. They run servers of their own and never touch those that the packages may start.
# SERVER_DIRECTORIES names where programs are looked for besides PATH.
set -u

default_directories() {
    printf '/usr/sbin:/usr/local/sbin'
    for directory in /usr/lib/postgresql/*/bin; do
        printf ':%s' "$directory"
    done
}

SERVER_DIRECTORIES=${SERVER_DIRECTORIES-$(default_directories)}

has() (
    PATH="$PATH:$SERVER_DIRECTORIES"
    for program in "$@"; do
        command -v "$program" >/dev/null || exit 1
    done
)

missing_packages() {
    has initdb postgres || printf 'postgresql '
    has mariadbd mariadb-install-db || printf 'mariadb-server '
    has redis-server || printf 'redis-server '
    has pgbouncer || printf 'pgbouncer '
}

fail() {
    printf '%s\n' "$1" >&2
    exit 1
}

# Networks fail for a moment, and another apt may be at work.
try_thrice() {
    for pause_s in 5 20 0; do
        "$@" && return 0
        sleep "$pause_s"
    done
    return 1
}

apt() {
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@"
}

install() {
    packages=$(missing_packages)
    [ -n "$packages" ] || return 0
    command -v apt-get >/dev/null || fail "Servers for the tests are missing ($packages), and there is no apt-get: install them with the package manager of this system."
    [ "$(id -u)" = 0 ] || fail "Servers for the tests are missing ($packages). To install them: sudo sh tools/test_servers.sh install"
    # Lists that are a little old often do; what matters is whether the packages come.
    try_thrice apt update || printf 'apt-get update failed; the package lists may be old.\n' >&2
    # shellcheck disable=SC2086
    try_thrice apt install --no-install-recommends $packages || fail "apt-get could not install $packages: its message above says why."
    packages=$(missing_packages)
    [ -z "$packages" ] || fail "apt-get has installed everything, but programs of these packages are not found: $packages"
}

case "${1:-}" in
check)
    packages=$(missing_packages)
    [ -z "$packages" ] || fail "Servers for the tests are missing: $packages. To install them: sudo sh tools/test_servers.sh install"
    ;;
install) install ;;
*) fail "usage: test_servers.sh check|install" ;;
esac
