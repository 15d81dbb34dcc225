#!/bin/sh
# What this project needs from the machine: a Python >= 3.11 with its venv module, and Java >= 17 for Spark.
#
#   check_host.sh python   prints the first interpreter that will do
#   check_host.sh java     prints nothing when `java` will do
#
# What is missing is said in one line on standard error, and the exit code is 1.
# PYTHON=/path/to/python chooses the interpreter; JAVA_HOME chooses the Java, as it does for Spark.
set -u

fail() {
    printf '%s\n' "$1" >&2
    exit 1
}

check_python() {
    best_refusal=""
    # A name on PATH proves little: version managers put a shim there for every Python they know of. So each one is run.
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3.14 python3 python}; do
        version=$("$candidate" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || continue
        if ! "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            best_refusal=${best_refusal:-"Python 3.11 or newer is needed, but $candidate is $version: install python3.11 (or newer), or name one with PYTHON=/path/to/python."}
        elif ! "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            short=${version%.*}
            best_refusal="$candidate ($version) cannot make virtual environments: install its venv module (Debian, Ubuntu: apt install python$short-venv)."
        else
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    fail "${best_refusal:-"Python 3.11 or newer is needed, and ${PYTHON:-no python3} does not run: install python3.11 (or newer) with its venv module, or name one with PYTHON=/path/to/python."}"
}

check_java() {
    java=java
    where="on PATH"
    if [ -n "${JAVA_HOME:-}" ]; then
        java=$JAVA_HOME/bin/java
        where="in JAVA_HOME=$JAVA_HOME"
    fi
    advice="install a Java 17 runtime (Debian, Ubuntu: apt install openjdk-17-jre-headless), or point JAVA_HOME at one."
    # `java -version` writes: openjdk version "17.0.15" 2025-04-15; before Java 9: java version "1.8.0_392"
    version=$("$java" -version 2>&1 | sed -n 's/.* version "\([^"]*\)".*/\1/p' | head -n 1)
    [ -n "$version" ] || fail "Spark needs Java 17 or newer, and there is no working java $where: $advice"
    major=$(printf '%s' "${version#1.}" | sed 's/[^0-9].*//')
    [ "${major:-0}" -ge 17 ] || fail "Spark needs Java 17 or newer, but the java $where is $version: $advice"
}

case "${1:-}" in
python) check_python ;;
java) check_java ;;
*) fail "usage: check_host.sh python|java" ;;
esac
