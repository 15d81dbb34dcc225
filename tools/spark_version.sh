#!/bin/sh
# spark_version.sh VERSION PYTHON: an environment build/spark-VERSION with the newest release of that Spark, beside all
# that the environment of PYTHON has.
set -eu
version=$1 python=$2
here=$(cd "$(dirname "$0")/.." && pwd)
made=$here/build/spark-$version

rm -rf "$made"
"$python" -m venv "$made"
echo "Installing Spark $version into build/spark-$version: 450 MB."
"$made/bin/python" -m pip install --quiet --disable-pip-version-check "pyspark[connect]==$version.*"
# Behind the packages of the new environment, and only now: pip would take a newer Spark there for the one that is asked for.
"$python" -c 'import sys; print(*(path for path in sys.path[1:] if not path.startswith(sys.base_prefix)), sep="\n")' \
    >"$("$made/bin/python" -c 'import site; print(site.getsitepackages()[0])')/zz_packages.pth"
touch "$made/.installed"
