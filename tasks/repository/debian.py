"""Single fixes from Debian source packages: each patch of a series is a tree before and after.

apt gets sources, lists and a cache of its own, so the system's are left alone; it checks the archive's signatures.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from environments.errors import MissingDependencyError
from tasks.repository.candidate import Candidate
from tasks.repository.index import OfflineError, licence_of
from tasks.repository.tree import Tree, TreeError, is_history, read_tar, text_of

_APT_S = 300
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_CONFIG = """Dir::Etc::sourcelist "{0}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "{0}/lists";
Dir::Cache "{0}/cache";
Acquire::Languages "none";
APT::Sandbox::User "{1}";
"""


@dataclass(frozen=True)
class SourcePackage:
    """An unpacked Debian source package, its patches not applied."""

    name: str
    version: str
    upstream: Tree
    debian: Tree
    """The files of `debian/`."""
    archives: tuple[tuple[str, str], ...]
    """(name, sha256) of what was fetched."""

    @property
    def series(self) -> tuple[str, ...]:
        """The patches in the order in which they are applied."""
        lines = self.debian.get("debian/patches/series", b"").decode(errors="replace").splitlines()
        return tuple(line.split()[0] for line in lines if line.strip() and not line.startswith("#"))


def fetch_source(name: str, folder: Path) -> SourcePackage:
    """The newest source package of this Debian release, security updates included; from `folder` when it is there already.

    Raises:
        MissingDependencyError: no apt here.
        OfflineError: the mirror cannot be reached.
        TreeError: no such package, or one of another format than `3.0 (quilt)`.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", name):
        raise TreeError(f"{name!r} is no name of a Debian package", "use lower-case letters, digits, '.', '+' and '-'")
    place = folder / name
    if not list(place.glob("*.dsc")):
        _download(name, place)
    (dsc,) = sorted(place.glob("*.dsc"))[-1:]
    version = re.search(r"^Version: (\S+)", dsc.read_text(errors="replace"), re.M)
    upstream = [p for p in place.iterdir() if re.search(r"\.orig\.tar\.\w+$", p.name)]
    debian = [p for p in place.iterdir() if re.search(r"\.debian\.tar\.\w+$", p.name)]
    if not (version and upstream and debian):
        raise TreeError(f"the source package {name} is not of format 3.0 (quilt)", "choose one that keeps its patches in a series")
    archives = tuple((p.name, hashlib.sha256(p.read_bytes()).hexdigest()) for p in sorted([dsc, upstream[0], debian[0]]))
    packed = {f"debian/{path.removeprefix('debian/')}": data for path, data in read_tar(debian[0]).items()}
    return SourcePackage(name, version[1], read_tar(upstream[0]), packed, archives)


def _download(name: str, place: Path) -> None:
    if shutil.which("apt-get") is None:
        raise MissingDependencyError("apt-get is not on this machine", "build the tasks from Debian patches on a Debian or Ubuntu system")
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ninefold-apt-") as work:
        for part in ("lists/partial", "cache/archives/partial"):
            Path(work, part).mkdir(parents=True)
        user = "root" if os.geteuid() == 0 else ""
        Path(work, "apt.conf").write_text(_CONFIG.format(work, user))
        Path(work, "sources.list").write_text(_sources())
        env = {**os.environ, "APT_CONFIG": f"{work}/apt.conf"}
        for command in (
            ["update", "-qq", "-o", "APT::Update::Error-Mode=any"],
            ["source", "-qq", "--download-only", "--only-source", name],
        ):
            said = subprocess.run(["apt-get", *command], cwd=place, env=env, capture_output=True, text=True, timeout=_APT_S)
            if said.returncode:
                reason = (said.stderr.strip().splitlines() or ["apt-get said nothing"])[-1]
                kind = TreeError if "Unable to find a source package" in said.stderr else OfflineError
                raise kind(f"apt cannot fetch the source of {name}: {reason}", "check the name and the mirror, with a network")


def _sources() -> str:
    """Source entries of the mirrors that the system itself uses for Debian's main component."""
    form = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", form, "Created-By: Packages"], capture_output=True, text=True, timeout=60
    ).stdout
    signed = f"[signed-by={_KEYRING}] " if _KEYRING.is_file() else ""
    entries = [line.split(" ", 3) for line in said.splitlines()]
    lines = [
        f"deb-src {signed}{uri} {suite} main" for uri, suite, component, origin in entries if component == "main" and "Debian" in origin
    ]
    if not lines:
        raise OfflineError("apt has no list of a Debian mirror", "apt-get update, on a Debian system")
    return "\n".join(dict.fromkeys(lines)) + "\n"


def apply_patch(tree: Tree, patch: bytes) -> Tree:
    """The tree with one patch applied.

    Raises:
        TreeError: it does not apply.
        MissingDependencyError: patch(1) is not installed.
    """
    touched = {m.decode() for m in re.findall(rb"^(?:---|\+\+\+) [^/\s]+/(\S+)", patch, re.M)}
    if any(path.startswith("/") or ".." in path.split("/") for path in touched):
        raise TreeError("the patch names a path outside the tree", "do not use this patch")
    with tempfile.TemporaryDirectory(prefix="ninefold-patch-") as work:
        for path in touched & tree.keys():
            Path(work, path).parent.mkdir(parents=True, exist_ok=True)
            Path(work, path).write_bytes(tree[path])
        try:
            said = subprocess.run(
                ["patch", "-p1", "--batch", "--forward", "--no-backup-if-mismatch", "-d", work],
                input=patch,
                capture_output=True,
                timeout=60,
            )
        except FileNotFoundError as error:
            raise MissingDependencyError("patch is not installed", "apt-get install -y patch") from error
        if said.returncode:
            raise TreeError(f"the patch does not apply: {said.stdout.decode(errors='replace')[-200:]}", "apply the series in its order")
        changed = {path: Path(work, path).read_bytes() for path in touched if Path(work, path).is_file()}
    return {**{path: data for path, data in tree.items() if path not in touched}, **changed}


def patch_candidates(
    source: SourcePackage, wanted: Sequence[str] = (), requirements: tuple[str, ...] = (), plugins: tuple[str, ...] = ()
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Each patch of the series (those named, if any are) as a candidate; and (patch, reason) of those that do not apply.

    A patch after one that does not apply is still tried, on the tree without it.
    """
    tree, found, refused = source.upstream, [], []
    for patch in source.series:
        data = source.debian.get(f"debian/patches/{patch}", b"")
        try:
            after = apply_patch(tree, data)
        except TreeError as error:
            refused.append((patch, error.message))
            continue
        if not wanted or patch in wanted:
            found.append(
                Candidate(
                    name=f"{source.name} {patch}",
                    package=source.name,
                    origin="debian",
                    version=source.version,
                    before=tree,
                    after=after,
                    statement="\n\n".join(filter(None, (patch_header(data.decode(errors="replace")), noted(tree, after)))),
                    licence=copyright_of(source.debian) or licence_of(source.upstream),
                    sources=(*source.archives, (patch, hashlib.sha256(data).hexdigest())),
                    requirements=requirements or ("pytest>=8,<10",),
                    plugins=plugins,
                )
            )
        tree = after
    missing = set(wanted) - set(source.series)
    return found, [*refused, *((name, "the series has no such patch") for name in sorted(missing))]


_FIELDS = re.compile(
    r"^(From|Date|Origin|Bug[\w-]*|Forwarded|Author|Reviewed-by|Last-Update|Applied-Upstream|Signed-off-by|"
    r"Co-authored-by|Index|Backported-by)\b[^\n:]*:|^From [0-9a-f]{40}|^\(cherry picked",
    re.I,
)


def patch_header(patch: str) -> str:
    """What the header of a patch says (DEP-3 or a mail), without people, dates, addresses and the list of files."""
    lines: list[str] = []
    for line in patch.splitlines():
        if line.startswith(("diff ", "--- ", "Index: ")) or line.rstrip() == "---":
            break
        if not _FIELDS.match(line):
            lines.append(re.sub(r"^(Subject|Description): *(\[PATCH[^\]]*\] *)?", "", line))
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"https?://\S+", "", "\n".join(lines))).strip()[:2500]


def noted(before: Tree, after: Tree) -> str:
    """What a patch adds to the upstream change log."""
    new: list[str] = []
    for path in sorted(p for p in after if is_history(p) and before.get(p) != after[p]):
        old = set((text_of(before.get(path, b"")) or "").splitlines())
        new += [line for line in (text_of(after[path]) or "").splitlines() if line not in old]
    return "\n".join(new).strip()[:2000]


def copyright_of(debian: Tree) -> str:
    """The licence of `Files: *` in debian/copyright (the machine-readable format); empty when it cannot be told."""
    text = debian.get("debian/copyright", b"").decode(errors="replace")
    match = re.search(r"^Files: \*\s*$.*?^License: *(\S[^\n]*)", text, re.M | re.S) or re.search(r"^License: *(\S[^\n]*)", text, re.M)
    return match[1].strip() if match else ""
