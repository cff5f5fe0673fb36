#!/usr/bin/env bash
# Installs the Debian packages that the full pipeline uses, or says exactly how to. Never fails: what is missing only
# switches off what truly needs it (`ninefold doctor` tells, and tests that need it say so when they skip).
set -u

declare -A why=(
  [bubblewrap]="sandboxes for agents' code"
  [chromium]="page fetches and browser tests"
  [dict-foldoc]="part of the search corpus (FOLDOC)"
  [python3.11-doc]="part of the search corpus (Python's documentation)"
  [fonts-dejavu-core]="readable text in screenshots"
)

present() {
  case "$1" in
    # A program on the path counts, whoever packaged it.
    bubblewrap) command -v bwrap >/dev/null 2>&1 ;;
    chromium) command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 ;;
    *) [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ] ;;
  esac
}

missing=()
for package in bubblewrap chromium dict-foldoc python3.11-doc fonts-dejavu-core; do
  present "$package" || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

say_how() {
  echo "setup: $1 Without them:"
  for package in "${missing[@]}"; do echo "  - $package: ${why[$package]}"; done
  echo "  Fix: sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
}

if ! command -v apt-get >/dev/null 2>&1; then
  say_how "this is not a Debian system; install the counterparts of these packages."
  exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
  say_how "not root, so these packages were not installed."
  exit 0
fi

echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >/dev/null 2>&1 || echo "setup: apt-get update failed; trying the lists that are there"
failed=()
# One by one, so that a package which this release lacks does not take the others with it.
for package in "${missing[@]}"; do
  apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1 </dev/null || failed+=("$package")
done
if [ ${#failed[@]} -gt 0 ]; then
  missing=("${failed[@]}")
  say_how "apt-get could not install these packages."
fi
exit 0
