#!/bin/sh
# Stage 1 of the Dockerfile: SaturnMQ with all it needs, and tini, into /opt/saturnmq.
# compose/wheels filled: from there alone, without a network. Else: built here, with compiled
# kernels if a compiler can be had.
set -eu
target=/opt/saturnmq
wheels=compose/wheels
if ls "$wheels"/saturnmq-*.whl >/dev/null 2>&1; then
  tini=$wheels/tini
  [ -x "$tini" ] || { echo "$tini is missing: run make compose-wheels again" >&2; exit 1; }
else
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends tini
  tini=$(command -v tini)
  headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include") + "/Python.h")')
  compiler="gcc libc6-dev"
  [ -f "$headers" ] || compiler="$compiler python3-dev"
  # shellcheck disable=SC2086  # a list of packages
  apt-get install -y -qq --no-install-recommends $compiler ||
    echo "no compiler to be had: without compiled kernels, slower" >&2
  wheels=/tmp/wheels
  python3 -m pip wheel -q -w "$wheels" .
fi
python3 -m venv --without-pip "$target"
python3 -m pip --python "$target/bin/python" install -q --no-cache-dir --no-index \
  --find-links "$wheels" saturnmq
install -m 755 "$tini" "$target/bin/tini"
