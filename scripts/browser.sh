#!/bin/sh
# Installs Chromium, which tests of pages need, where Debian's packages are to be had and this user may install them.
set -eu
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" > /dev/null; then exit 0; fi
done
[ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null || { echo "there is no Chromium, and no way to install it" >&2; exit 1; }
apt-get update -q > /dev/null
apt-get install -y -q chromium > /dev/null
