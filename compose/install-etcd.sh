#!/bin/sh
# etcd into /usr/local/bin: that of compose/wheels, or else Debian's package.
set -eu
etcd=/src/wheels/etcd
if [ ! -x "$etcd" ]; then
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends etcd-server
  etcd=$(command -v etcd)
fi
install -m 755 "$etcd" /usr/local/bin/etcd
