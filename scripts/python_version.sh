#!/bin/sh
# Usage: python_version.sh PYTHON; fails with one clear message if Outgrow does not run on that interpreter.
python="$1"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || version=""
case "$version" in
3.11 | 3.12 | 3.13) exit 0 ;;
esac
got="$python, which does not run"
[ -z "$version" ] || got="$python, which is Python $version"
cat >&2 <<MESSAGE
error: this Python cannot run Outgrow
  needed: Python 3.11, 3.12 or 3.13
  got:    $got
  repair: name another one, as in: make test PYTHON=python3.12
MESSAGE
exit 2
