from __future__ import annotations

import os
import pickle
import shutil
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import trustme

from environments.errors import InputError
from environments.search.web import (
    FetchConfig,
    GitConfig,
    MergedSource,
    NotRetrievedError,
    RetrievalConfig,
    RetrievedDocument,
    open_sources,
)
from environments.search.web.git import is_material
from environments.search.web.guard import Guard
from environments.search.web.outcome import Journal
from environments.search.web.repository import GitSource, open_repository

from .conftest import Reply, Request, Site, serving
from .test_licence import MIT

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

FILES: dict[str, str] = {
    "README.md": "# Trees\n\nA library of spanning trees, matroids and all that belongs to them.\n",
    "LICENSE": MIT,
    "docs/guide.rst": "Guide\n=====\n\nHow to grow a spanning tree with :func:`trees.kruskal`, step by step.\n",
    "docs/own.md": "<!-- SPDX-License-Identifier: CC-BY-4.0 -->\nA page of the documentation that has a licence of its own.\n",
    "src/trees/__init__.py": '"""Spanning trees of weighted graphs, in pure Python."""\nfrom .core import kruskal\n',
    "src/trees/core.py": 'def kruskal(edges, key=None):\n    """The lightest spanning tree, by Kruskal\'s algorithm."""\n    return []\n',
    "src/trees/deep.py": "x = " + "(" * 5000 + ")" * 5000 + "\n",
    "src/trees/chain.py": "def f(a=" + "+".join(["1"] * 20_000) + '):\n    """A default that nests without end."""\n',
    "tests/test_trees.py": 'def test():\n    """A test that has a docstring, which is no material."""\n',
    "setup.py": '"""Building this would run code, reading it does not."""\nraise SystemExit("executed")\n',
    "node_modules/x/README.md": "Somebody else's readme that came along with the rest.\n",
}


def git(folder: Path, *arguments: str) -> str:
    fixed = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder)}
    who = {f"GIT_{role}_{what}": "x@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ["git", "-c", "protocol.file.allow=always", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **fixed, **who}, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path, files: Mapping[str, str | bytes], message: str = "change") -> str:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "trees"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, FILES)
    return folder


def opened(config: GitConfig, tmp_path: Path, bounds: FetchConfig | None = None) -> GitSource:
    return open_repository(config, Guard(bounds or FetchConfig()), tmp_path / "cache")


def refusal(config: GitConfig, tmp_path: Path, bounds: FetchConfig | None = None) -> str:
    with pytest.raises(NotRetrievedError) as caught:
        opened(config, tmp_path, bounds)
    assert Journal(tmp_path / "cache" / "outcomes.jsonl").read()[-1] == caught.value.outcome
    return caught.value.outcome.kind


def test_readme_documentation_and_docstrings_of_a_commit(repository: Path, tmp_path: Path) -> None:
    source = opened(GitConfig(url=str(repository)), tmp_path)
    head = git(repository, "rev-parse", "HEAD")
    found = {d.title: d for d in source.corpus.documents()}
    assert set(found) == {"README.md", "docs/guide.rst", "docs/own.md", "trees", "trees.kruskal"}
    assert {d.source for d in found.values()} == {f"git:trees@{head[:12]}"}
    assert found["docs/own.md"].licence == "CC-BY-4.0"
    assert {d.licence for t, d in found.items() if t != "docs/own.md"} == {"MIT"} == {source.licence}
    assert source.search("kruskal spanning tree")[0].title == "trees.kruskal"
    document = source.open(source.search("guide")[0].document_id)
    assert isinstance(document, RetrievedDocument)
    assert document.text == FILES["docs/guide.rst"]
    assert (document.commit, document.via, document.links, document.untrusted) == (head, "git", ("trees.kruskal",), True)
    assert pickle.loads(pickle.dumps(source)).search("kruskal") == source.search("kruskal")


def test_a_commit_stays_until_another_is_asked_for(repository: Path, tmp_path: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    assert opened(GitConfig(url=str(repository)), tmp_path).commit == first
    second = commit(repository, {"docs/new.md": "A document that was written after the first retrieval.\n"})
    assert opened(GitConfig(url=str(repository)), tmp_path).commit == first
    later = opened(GitConfig(url=f"file://{repository}", commit=second), tmp_path)
    assert later.search("written after the first retrieval")[0].title == "docs/new.md"
    earlier = opened(GitConfig(url=str(repository), commit=first), tmp_path)  # no branch points at it any more
    assert earlier.content_hash != later.content_hash
    shutil.rmtree(repository)
    repository.mkdir()
    offline = FetchConfig(offline=True)
    assert opened(GitConfig(url=str(repository), commit=first), tmp_path, offline).content_hash == earlier.content_hash
    assert refusal(GitConfig(url=str(repository), commit="0" * 40), tmp_path, offline) == "offline"


def test_nothing_of_a_repository_is_executed(repository: Path, tmp_path: Path) -> None:
    """Hooks, filters, fsmonitor, ssh and submodules of a hostile repository, each of which would leave a file behind."""
    trap = tmp_path / "executed"
    script = f"#!/bin/sh\ntouch {trap}\n"
    for name in ("post-checkout", "post-merge", "reference-transaction", "pre-auto-gc", "pre-receive", "post-update"):
        hook = repository / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(script)
        hook.chmod(0o755)
    for key in ("core.fsmonitor", "core.sshCommand", "filter.x.smudge", "filter.x.clean", "uploadpack.packObjectsHook", "core.pager"):
        git(repository, "config", key, f"touch {trap}; cat")
    trap.unlink(missing_ok=True)
    with (repository / ".git" / "info" / "attributes").open("w") as file:
        file.write("* -filter\n")
    git(repository, "config", "--unset", "core.fsmonitor")
    modules = f'[submodule "x"]\n\tpath = x\n\turl = ext::sh -c "touch {trap}"\n'
    commit(repository, {".gitattributes": "* filter=x\n*.md export-subst ident\n", ".gitmodules": modules})
    git(repository, "config", "core.fsmonitor", f"touch {trap}")
    trap.unlink(missing_ok=True)
    found = {d.title for d in opened(GitConfig(url=str(repository)), tmp_path).corpus.documents()}
    assert "README.md" in found
    assert not trap.exists()


def test_links_leave_nothing_outside_behind_and_bring_nothing_in(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.md").write_text("A secret file beside the repository that nobody may read.\n")
    (repository / "docs" / "link.md").symlink_to(tmp_path / "secret.md")
    (repository / "src" / "trees" / "up").symlink_to(tmp_path)
    commit(repository, {"docs/ok.md": "Another document that is long enough to be one.\n"})
    source = opened(GitConfig(url=str(repository)), tmp_path)
    assert "docs/ok.md" in {d.title for d in source.corpus.documents()}
    assert all("secret" not in d.text for d in source.corpus.documents())


@pytest.mark.parametrize("filters", ["true", "false"])
def test_limits(filters: str, repository: Path, tmp_path: Path) -> None:
    git(repository, "config", "uploadpack.allowFilter", filters)  # whether the server leaves large files out by itself
    commit(repository, {"docs/big.md": "word " * 20_000, "docs/noise.md": os.urandom(500_000), "docs/binary.md": b"\0\1\2" * 300})
    source = opened(GitConfig(url=str(repository), max_file_bytes=50_000), tmp_path)
    titles = {d.title for d in source.corpus.documents()}
    assert "docs/guide.rst" in titles
    assert not titles & {"docs/big.md", "docs/noise.md", "docs/binary.md"}
    assert refusal(GitConfig(url=str(repository), max_bytes=100_000, name="other"), tmp_path) == "too_large"
    assert refusal(GitConfig(url=str(repository), fetch_s=0.001, name="another"), tmp_path) == "timeout"
    assert not [p for p in (tmp_path / "cache" / "git").rglob("*.git") if p.is_dir()]  # nothing half-fetched stays
    few = opened(GitConfig(url=str(repository), max_documents=2, name="few"), tmp_path)
    assert len(few.corpus) == 2


def test_what_is_no_repository_is_an_outcome(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        opened(GitConfig(url=str(tmp_path / "nowhere")), tmp_path)
    (tmp_path / "plain").mkdir()
    assert refusal(GitConfig(url=str(tmp_path / "plain")), tmp_path) == "git"
    assert refusal(GitConfig(url=str(repository), commit="1" * 40), tmp_path) == "git"
    tree = git(repository, "rev-parse", "HEAD^{tree}")
    assert refusal(GitConfig(url=str(repository), commit=tree), tmp_path) == "git"
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    assert refusal(GitConfig(url=str(empty)), tmp_path) == "git"
    commit(empty, {"a.bin": b"\0" * 100})
    assert refusal(GitConfig(url=str(empty)), tmp_path) == "no_text"


@pytest.mark.parametrize("wrong", ["", None, "Do what you like with it."])
def test_a_licence_that_is_not_clear_is_unknown(wrong: str | None, repository: Path, tmp_path: Path) -> None:
    if wrong is None:
        (repository / "LICENSE").unlink()
    commit(repository, {"LICENSE.rst": wrong} if wrong is not None else {"x.md": "A document that comes with no licence at all."})
    assert opened(GitConfig(url=str(repository)), tmp_path).licence == "unknown"


def test_a_path_with_odd_characters(repository: Path, tmp_path: Path) -> None:
    git(repository, "config", "uploadpack.allowFilter", "true")
    odd = repository.rename(tmp_path / "Bäume & mehr %20")
    source = opened(GitConfig(url=str(odd)), tmp_path)
    assert source.open(source.search("kruskal")[0].document_id).source.startswith("git:B-ume---mehr--20@")


def test_spdx_lines_of_sources_count(repository: Path, tmp_path: Path) -> None:
    other = '# SPDX-License-Identifier: GPL-3.0-only\ndef boruvka(edges):\n    """The lightest spanning tree, in rounds."""\n'
    commit(repository, {"src/trees/taken.py": other})
    source = opened(GitConfig(url=str(repository)), tmp_path)
    assert (source.licence, source.search("boruvka")) == ("MIT", [])
    (repository / "LICENSE").unlink()
    (repository / "docs" / "own.md").unlink()
    after = commit(repository, {"setup.py": "import os\n"})
    source = opened(GitConfig(url=str(repository), commit=after), tmp_path)
    assert source.licence == "GPL-3.0-only"  # the only one that is stated
    assert {d.licence for d in source.corpus.documents()} == {"GPL-3.0-only"}
    both = commit(repository, {"src/trees/more.py": other.replace("GPL-3.0-only", "MIT")})
    assert opened(GitConfig(url=str(repository), commit=both), tmp_path).licence == "unknown"


def test_a_repository_that_cannot_be_had_does_not_stop_the_others(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    config = RetrievalConfig(git=(GitConfig(url=str(tmp_path / "plain")), GitConfig(url=str(repository))))
    source = open_sources(config, tmp_path / "cache")
    assert isinstance(source, GitSource)
    both = open_sources(RetrievalConfig(git=config.git), tmp_path / "cache", local=(source,))
    assert isinstance(both, MergedSource)
    hits = both.search("kruskal spanning tree", 5)
    assert len({h.document_id for h in hits}) == len(hits)
    assert both.open(hits[0].document_id).title == "trees.kruskal"


def test_which_files_are_material() -> None:
    for path in ("README", "sub/README.rst", "docs/a/b.md", "CHANGELOG.md", "src/x.py", "LICENSE", "LICENSES/MIT.txt", "doc/x.txt"):
        assert is_material(path), path
    for path in ("a/notes.md", "requirements.txt", "docs/x.png", "vendor/x.py", "docs/../x.md", "a\\b.md", "src/x.c", "../README"):
        assert not is_material(path), path


# --- over the network ---


def backend(root: Path) -> Reply:
    """Serve repositories below `root` by git's own http-backend."""
    program = Path(subprocess.run(["git", "--exec-path"], check=True, capture_output=True, text=True).stdout.strip()) / "git-http-backend"

    def reply(request: Request) -> None:
        query = "&".join(f"{k}={v}" for k, values in request.query.items() for v in values)
        environment = {
            "GIT_PROJECT_ROOT": str(root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": request.path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": request.method,
            "CONTENT_TYPE": request.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(request.body)),
            "GIT_PROTOCOL": request.headers.get("git-protocol", ""),
            "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
            "PATH": os.environ["PATH"],
            "HOME": str(root),
        }
        said = subprocess.run([program], input=request.body, env=environment, capture_output=True, check=False).stdout
        head, _, body = said.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        request.answer(body, int(fields.pop("Status", "200").split()[0]), fields.pop("Content-Type", "text/plain"), fields)

    return reply


@pytest.fixture
def hosted(repository: Path, tmp_path: Path) -> Iterator[tuple[Site, FetchConfig]]:
    """The repository at https://localhost:PORT/trees, and bounds that trust and may reach it."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "git.example").configure_cert(context)
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    with serving(context) as site:
        for path in ("/trees/info/refs", "/trees/git-upload-pack"):
            site.on(path, backend(tmp_path))
        yield site, FetchConfig(private=("localhost", "git.example"), ca_file=tmp_path / "ca.pem", connect_s=3.0)


def test_a_repository_over_https(hosted: tuple[Site, FetchConfig], repository: Path, tmp_path: Path) -> None:
    site, bounds = hosted
    source = opened(GitConfig(url=f"https://localhost:{site.port}/trees"), tmp_path, bounds)
    assert source.commit == git(repository, "rev-parse", "HEAD")
    assert source.search("kruskal")[0].title == "trees.kruskal"
    assert site.requests[0].headers["user-agent"] == bounds.user_agent
    assert all("authorization" not in request.headers for request in site.requests)


def test_git_connects_to_the_address_that_was_checked(hosted: tuple[Site, FetchConfig], tmp_path: Path) -> None:
    site, bounds = hosted

    def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]  # a name that the system does not know

    url = f"https://git.example:{site.port}/trees"
    source = open_repository(GitConfig(url=url), Guard(bounds, resolve), tmp_path / "cache")
    assert source.search("kruskal")
    assert site.requests[0].headers["host"] == f"git.example:{site.port}"
    closed = bounds.model_copy(update={"private": (), "ports": (443, site.port)})
    with pytest.raises(NotRetrievedError, match="private_address"):
        open_repository(GitConfig(url=url), Guard(closed, resolve), tmp_path / "other")


def test_git_follows_no_redirect_and_needs_tls(hosted: tuple[Site, FetchConfig], site: Site, tmp_path: Path) -> None:
    secure, bounds = hosted
    secure.on("/moved/info/refs", lambda r: r.answer(b"", 302, headers={"Location": "/trees/info/refs?service=git-upload-pack"}))
    assert refusal(GitConfig(url=f"https://localhost:{secure.port}/moved"), tmp_path, bounds) == "git"
    assert secure.asked("/trees/info/refs") == []
    assert refusal(GitConfig(url="http://example.org/trees"), tmp_path, bounds) == "git"
    untrusting = bounds.model_copy(update={"ca_file": None})
    assert refusal(GitConfig(url=f"https://localhost:{secure.port}/trees"), tmp_path, untrusting) == "git"
    denied = bounds.model_copy(update={"deny": ("localhost",)})
    assert refusal(GitConfig(url=f"https://localhost:{secure.port}/trees"), tmp_path, denied) == "host_denied"


def test_a_git_host_that_hangs_is_a_timeout(hosted: tuple[Site, FetchConfig], tmp_path: Path) -> None:
    site, bounds = hosted

    def hang(request: Request) -> None:
        site.closing.wait(20)

    site.on("/slow/info/refs", hang)
    assert refusal(GitConfig(url=f"https://localhost:{site.port}/slow", fetch_s=1.0), tmp_path, bounds) == "timeout"
