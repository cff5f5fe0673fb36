#!/usr/bin/env bash
# Puts gVisor's runsc from this Debian's backports into a folder: `bash .ci/gvisor.sh .cache/bin`. Needs no privileges and
# changes nothing of the system: apt gets sources, lists and a cache of its own, and the package is only unpacked.
# Never fails: what is missing switches off the gVisor sandboxes only, and is said with the fix.
set -u

folder=${1:-.cache/bin}
oldest=20240729 # releases of 2022 cannot go on after a checkpoint

new_enough() {
  local version
  version=$("$1" --version 2>/dev/null) || return 1
  [[ $version =~ (20[0-9]{6}) ]] && ((BASH_REMATCH[1] >= oldest))
}

give_up() {
  echo "setup: $1 Without runsc there are no gVisor sandboxes."
  echo "  Fix: $2"
  exit 0
}

new_enough "$folder/runsc" && exit 0
found=$(command -v runsc) && new_enough "$found" && exit 0

by_hand="install runsc of release $oldest or later (gVisor's installation guide says how), then set NINEFOLD_RUNSC to its path"
command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 || give_up "this is not a Debian system." "$by_hand"
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ -n "$codename" ] || give_up "/etc/os-release names no release." "$by_hand"

# The mirror that the system itself uses for this release.
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
  awk -v release="$codename" '$2 == release && $3 == "main" { print $1; exit }')
[ -n "$mirror" ] || give_up "apt has no source for $codename main." "add one to /etc/apt/sources.list, then: bash .ci/gvisor.sh $folder"

work=$(mktemp -d) || give_up "no temporary folder can be made." "free disk space, then: bash .ci/gvisor.sh $folder"
trap 'rm -rf "$work"' EXIT
chmod 755 "$work" # root's apt downloads as another user
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/deb"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r "$keyring" ] && signed="[signed-by=$keyring] " || signed=""
cat >"$work/apt.conf" <<CONF
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$work/lists";
Dir::Cache "$work/cache";
Acquire::Languages "none";
CONF
export APT_CONFIG="$work/apt.conf"

said="nothing was tried"
for suite in "$codename-backports" "$codename"; do
  echo "deb $signed$mirror $suite main" >"$work/sources.list"
  if ! said=$(apt-get update -qq -o APT::Update::Error-Mode=any 2>&1 </dev/null); then continue; fi
  if ! said=$(cd "$work/deb" && rm -f ./*.deb && apt-get download -qq "runsc/$suite" 2>&1 </dev/null); then continue; fi
  if ! said=$(dpkg-deb -x "$work"/deb/runsc_*.deb "$work/deb" 2>&1); then continue; fi
  if ! new_enough "$work/deb/usr/bin/runsc"; then
    said="$suite has $("$work/deb/usr/bin/runsc" --version 2>&1 | head -n 1)"
    continue
  fi
  # Renamed, so that nobody runs half of it.
  if said=$({ mkdir -p "$folder" && install -m 755 "$work/deb/usr/bin/runsc" "$folder/.runsc.$$" && mv -f "$folder/.runsc.$$" "$folder/runsc"; } 2>&1); then
    echo "setup: $("$folder/runsc" --version | head -n 1) is in $folder"
    exit 0
  fi
  give_up "runsc cannot be written to $folder ($said)." "bash .ci/gvisor.sh FOLDER, with one that you may write to"
done
give_up "runsc could not be had from $codename-backports ($(echo "$said" | head -n 1))." "try again with a network: bash .ci/gvisor.sh $folder; or $by_hand"
