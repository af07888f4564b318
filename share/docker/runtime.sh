#!/bin/sh
# The last stage of the Dockerfile: the libraries that the installed program needs.
set -eu
packages="libyaml-cpp0.7 libfmt9 libssl3 libre2-9 libonig5 libutf8proc2"
if [ "${LIST_ONLY:-}" ]; then echo "$packages"; exit 0; fi
apt-get update -q
# shellcheck disable=SC2086  # a list
apt-get install -y -q --no-install-recommends $packages
rm -rf /var/lib/apt/lists/*
