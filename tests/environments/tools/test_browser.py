"""A real browser: what an agent reads and does there, and that it reaches what the task serves and nothing else."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from environments.environment import Environment
from environments.errors import BadArgumentsError, InfrastructureError
from environments.families import make_environment
from environments.protocols import Observation
from environments.resources import Resources
from environments.sandbox.base import Backend
from environments.task import InitialState, ToolCall
from environments.tools.browser import HEIGHT, WIDTH, BrowserSession
from environments.tools.chromium import CHROMIUM
from environments.tools.sites import Sites
from environments.vault import Vault
from tests.environments.small_tasks import settings_task
from tests.environments.tools.pictures import png

pytestmark = pytest.mark.chromium

FORM = """<!doctype html><title>Form</title><h1>Order</h1>
<form action="/done.html"><label>Name <input name="name" value="old"></label>
<label>Size <select name="size"><option>small<option>large</select></label><button>Send</button></form>
<div style="cursor:pointer" onclick="this.textContent = 'pressed at ' + (event.clientY > 0)">press me</div>
<p contenteditable>note</p><a href="/done.html" target="_blank">window</a>
<div style="height:2000px"></div><p>the end</p>"""
FILES = {
    "index.html": FORM.encode(),
    "done.html": b"<!doctype html><title>Done</title><p id=p></p><script>p.textContent = location.search</script><p>thanks</p>",
    "dialog.html": b"<!doctype html><title>D</title><script>document.title = String(confirm('sure?'))</script><p>after</p>",
    "busy.html": b"<!doctype html><title>B</title><button onclick='for(;;);'>stop</button>",
    "grey.html": b"<!doctype html><style>body{margin:0}</style><img src=grey.png>",
    "grey.png": png(WIDTH, HEIGHT, 77),
    "data.bin": bytes(range(256)),
    "windows.html": b"<title>Windows</title><button onclick='for (let i = 0; i < 12; i++) window.open(`done.html?${i}`)'>more",
    "drawing.svg": b'<svg xmlns="http://www.w3.org/2000/svg"><text y="20">hi</text></svg>',
    "points.html": b"""<!doctype html><body onclick="document.title = [event.clientX, event.clientY]" style="height:700px">
        <textarea style="position:fixed;top:400px;width:600px;height:300px"></textarea>""",
    "get.html": b"<!doctype html><a href=data.bin download>get</a>",
}


@pytest.fixture(scope="module", autouse=True)
def _browser(chromium_executable: str) -> Iterator[None]:
    yield
    CHROMIUM.close()


@pytest.fixture
def session() -> Iterator[BrowserSession]:
    with BrowserSession(Sites(files=FILES)) as opened:
        yield opened


def use(session: BrowserSession, tool: str, **arguments: Any) -> Observation:
    return session.call(f"browser_{tool}", arguments)


def number(seen: Observation, words: str) -> str:
    """The number of the element in whose line `words` stand."""
    line = next(line for line in seen.text.splitlines() if words in line)
    return line.split("[")[1].split("]")[0]


def test_a_form_is_read_filled_and_sent(session: BrowserSession) -> None:
    page = use(session, "open", url="index.html")
    assert page.text.startswith("Form - http://task.test/index.html\n")
    assert '- heading "Order" [level=1]' in page.text
    assert "the end" not in page.text
    assert page.text.endswith("[1 lines below: browser_scroll]")
    page = use(session, "type", target=number(page, 'textbox "Name"'), text="Zoë & co")
    assert "Zoë & co" in page.text
    wrong = use(session, "type", target=number(page, "combobox"), text="huge")
    assert (wrong.failed, wrong.text) == (True, "there is no option 'huge'; there are: 'small', 'large'")
    page = use(session, "type", target=number(page, "combobox"), text="large")
    assert 'option "large" [selected]' in page.text
    page = use(session, "click", target=number(page, 'button "Send"'))
    assert page.text.startswith("Done - http://task.test/done.html?name=Zo")
    assert "size=large" in page.text
    assert "thanks" in page.text
    assert use(session, "back").text.startswith("Form - ")


def test_enter_text_targets_and_points(session: BrowserSession) -> None:
    use(session, "open", url="http://task.test/")
    assert "pressed at true" in use(session, "click", target="press me").text
    page = use(session, "open", url="points.html")
    assert "by point" in use(session, "type", target="300, 500", text="by point").text
    assert "by number" in use(session, "type", target=number(page, "textbox"), text="by number").text
    assert use(session, "click", target="300,10").text.startswith("300,10 - ")
    done = use(session, "type", target=number(use(session, "open", url="/"), "textbox"), text="me", enter=True)
    assert done.text.startswith("Done - http://task.test/done.html?name=me&size=small")


def test_scrolling_moves_the_view(session: BrowserSession) -> None:
    use(session, "open", url="/")
    seen = [use(session, "scroll", direction="down").text for _ in range(3)]
    assert "the end" in seen[-1]
    assert "Order" not in seen[-1]
    assert "lines above]" in seen[-1]
    assert "Order" in [use(session, "scroll", direction="up").text for _ in range(3)][-1]
    with pytest.raises(BadArgumentsError, match="direction"):
        use(session, "scroll", direction="left")


def test_a_screenshot_is_a_picture_of_the_view(session: BrowserSession) -> None:
    use(session, "open", url="grey.html")
    seen = use(session, "screenshot")
    data = base64.b64decode(seen.images[0].data)
    assert struct.unpack(">II", data[16:24]) == (WIDTH, HEIGHT)
    assert seen.images[0].media_type == "image/png"
    assert len(data) < len(base64.b64decode(use_after(session, "index.html")))  # one colour takes less room than a form


def use_after(session: BrowserSession, url: str) -> str:
    use(session, "open", url=url)
    return use(session, "screenshot").images[0].data


def test_windows_open_on_top_and_back_closes_them(session: BrowserSession) -> None:
    page = use(session, "open", url="/")
    assert use(session, "click", target=number(page, 'link "window"')).text.startswith("Done - http://task.test/done.html (window 2)")
    assert use(session, "back").text.startswith("Form - http://task.test/\n")
    none = use(session, "back")
    assert none.failed
    assert "[there is no page before]" in none.text
    assert none.text.startswith("Form - ")


def test_a_page_cannot_open_windows_without_end(session: BrowserSession) -> None:
    use(session, "open", url="windows.html")
    assert "[a window was closed: too many]" in use(session, "click", target="more").text
    for _ in range(20):
        if use(session, "back").text.startswith("Windows - "):
            break
    assert use(session, "back").failed


def test_dialogs_are_dismissed_and_downloads_do_not_happen(session: BrowserSession) -> None:
    page = use(session, "open", url="dialog.html")
    assert page.text.startswith("false - ")
    assert "[a dialog was dismissed: confirm 'sure?']" in page.text
    use(session, "open", url="get.html")
    assert not use(session, "click", target="get").failed
    assert use(session, "open", url="data.bin").failed
    assert use(session, "open", url="drawing.svg").text == "http://task.test/drawing.svg\n[no text in view]"
    assert not use(session, "open", url="/").failed


def test_what_does_not_work_is_an_answer(session: BrowserSession) -> None:
    with pytest.raises(BadArgumentsError, match="no page is open"):
        use(session, "click", target="1")
    missing = use(session, "open", url="nothing.html")
    assert missing.failed
    assert "[status 404]" in missing.text
    for url in ("file:///etc/passwd", "http://example.com/", "chrome://version", "view-source:http://task.test/", "http://127.0.0.1:4200"):
        refused = use(session, "open", url=url)
        assert refused.failed
    page = use(session, "open", url="/")
    with pytest.raises(BadArgumentsError, match="no element 99"):
        use(session, "click", target="99")
    assert use(session, "type", target=number(page, 'button "Send"'), text="x").failed


def test_a_page_that_hangs_is_closed_and_the_next_one_works(session: BrowserSession) -> None:
    use(session, "open", url="busy.html")
    usual, session.action_s = session.action_s, 1.5
    hung = use(session, "click", target="stop")
    assert (hung.failed, hung.text) == (True, "the page did not answer within 1.5 s and was closed")
    session.action_s = usual
    assert use(session, "open", url="/").text.startswith("Form - ")


def test_it_works_beside_an_event_loop_and_on_many_threads() -> None:
    async def inside_a_loop() -> str:
        with BrowserSession(Sites(files=FILES)) as session:
            return use(session, "open", url="done.html").text

    assert asyncio.run(inside_a_loop()).startswith("Done - ")
    texts: list[str] = []

    def one(i: int) -> None:
        with BrowserSession(Sites(files={"index.html": f"<title>{i}</title>".encode()})) as session:
            texts.append(use(session, "open", url="/").text.split()[0])

    threads = [threading.Thread(target=one, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts) == ["0", "1", "2"]


def test_a_browser_that_died_is_infrastructure_and_the_next_episode_has_another(session: BrowserSession) -> None:
    use(session, "open", url="/")
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(word.startswith("--host-resolver-rules") for word in process.cmdline()):
                process.kill()
    for _ in range(2):
        with pytest.raises(InfrastructureError, match="the browser died"):
            use(session, "click", target="press me")
    with BrowserSession(Sites(files=FILES)) as another:
        assert use(another, "open", url="/").text.startswith("Form - ")


def test_episodes_share_nothing() -> None:
    script = "document.title = document.cookie + localStorage.a; document.cookie = 'k=1'; localStorage.a = 2"
    files = {"index.html": f"<title>x</title><script>{script}</script>".encode()}
    for _ in range(2):
        with BrowserSession(Sites(files=files)) as other:
            assert use(other, "open", url="/").text.startswith("undefined - ")
            assert use(other, "open", url="/").text.startswith("k=12 - ")


# --- what it reaches -------------------------------------------------------------------------------------------------------

PROBES = """<!doctype html><title>probing</title><link rel=preconnect href="http://HOST"><link rel=prefetch href="http://HOST/prefetch">
<img src="http://HOST/img"><iframe src="http://HOST/frame"></iframe><script src="http://HOST/script"></script>
<script>
const tries = [fetch("http://HOST/fetch", {mode: "no-cors"}), fetch("http://localhost:PORT/name", {mode: "no-cors"})];
navigator.sendBeacon("http://HOST/beacon", "x");
tries.push(new Promise(done => { const s = new WebSocket("ws://HOST/socket"); s.onclose = s.onopen = done; }));
const peer = new RTCPeerConnection({iceServers: [{urls: "stun:HOST"}, {urls: "turn:HOST?transport=tcp", username: "u", credential: "p"}]});
peer.createDataChannel("x"); peer.createOffer().then(o => peer.setLocalDescription(o));
const gathered = new Promise(done => {
  peer.onicegatheringstatechange = () => peer.iceGatheringState === "complete" && done(); setTimeout(done, 1500);
});
Promise.allSettled([...tries, gathered]).then(() => { document.title = "probed"; });
</script>"""


class Listener:
    """A TCP and a UDP socket on one port of the host that remember who came."""

    def __init__(self) -> None:
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.port = self.tcp.getsockname()[1]
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", self.port))
        self.heard: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._listen_udp, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self.tcp.accept()
            except OSError:
                return
            with client:
                client.settimeout(5)
                line = client.recv(4096).partition(b"\r\n")[0].decode(errors="replace")
                self.heard.append(line)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def _listen_udp(self) -> None:
        while True:
            try:
                if self.udp.recvfrom(4096):
                    self.heard.append("udp")
            except OSError:
                return

    def close(self) -> None:
        for one in (self.tcp, self.udp):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
            finally:
                one.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


@pytest.mark.parametrize("allowed", [True, False])
def test_a_page_reaches_the_host_only_where_the_task_allows_it(listener: Listener, allowed: bool) -> None:
    host = f"127.0.0.1:{listener.port}"
    page = PROBES.replace("HOST", host).replace("PORT", str(listener.port))
    sites = Sites(files={"index.html": page.encode()}, origins=frozenset({f"http://{host}"} if allowed else ()))
    with BrowserSession(sites) as session:
        text = use(session, "open", url="/").text
        for _ in range(20):
            if text.startswith("probed"):
                break
            text = use(session, "scroll").text
        assert text.startswith("probed")
        assert use(session, "open", url=f"http://{host}/opened").failed != allowed
    reached = {line.split()[1].strip("/") for line in listener.heard if line.startswith(("GET", "POST"))}
    if allowed:  # the control: the probes do probe
        assert {"img", "frame", "script", "fetch", "beacon", "socket", "opened"} <= reached
        assert "name" not in reached  # localhost is another origin than 127.0.0.1
    else:
        assert listener.heard == []


@pytest.mark.sandbox
def test_the_browser_shows_what_the_sandbox_serves_and_code_inside_may_use_it(backend: Backend, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    task = settings_task(Vault(tmp_path))
    state = InitialState(
        files={"site/index.html": "<title>mine</title><button onclick='document.title = 1'>b</button>"}, tables=task.initial_state.tables
    )
    names = (*task.tools, "bash", "browser_open", "browser_click", "browser_screenshot")
    environment = make_environment(
        task.model_copy(update={"initial_state": state, "tools": names}), Resources(Vault(tmp_path), sandboxes=backend)
    )

    def call(tool: str, **arguments: Any) -> Observation:
        answer = environment.step(ToolCall(tool=tool, arguments=arguments))
        assert isinstance(answer, Observation)
        return answer

    with environment:
        environment.setup()
        call("bash", command=f"cd site; setsid python3 -m http.server {port} --bind 127.0.0.1 >/dev/null 2>&1 </dev/null & sleep 1")
        seen = call("browser_open", url=f"localhost:{port}")
        assert seen.text == f'mine - http://localhost:{port}/\n- button "b" [1]'
        inside = call(
            "bash", command=f"browser_click b | head -n 1; browser_open http://localhost:{port}/no >/dev/null; echo $?; browser_screenshot"
        )
        assert inside.text.splitlines()[0] == f"1 - http://localhost:{port}/"
        assert "[image: /tmp/" in inside.text
        assert "cannot be reached" in call("browser_open", url="http://task.test/").text


def test_without_a_sandbox_the_tasks_files_are_the_site(tmp_path: Path) -> None:
    task = settings_task(Vault(tmp_path))
    state = InitialState(files={"a.html": "<title>A</title>"}, tables=task.initial_state.tables)
    task = task.model_copy(update={"initial_state": state, "tools": (*task.tools, "browser_open")})
    environment: Environment = make_environment(task, Resources(Vault(tmp_path)))
    with environment:
        environment.setup()
        answer = environment.step(ToolCall(tool="browser_open", arguments={"url": "a.html"}))
        assert isinstance(answer, Observation)
        assert answer.text == "A - http://task.test/a.html\n[no text in view]"
