"""A server on loopback that replays Ollama's documented wire format
(https://github.com/ollama/ollama/blob/main/docs/api.md), and its faults. It runs no model: it answers with the tokens
it was given, over real HTTP."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BROKEN = {  # chunks that are none
    "malformed": '{"model": "m", "resp',
    "not an object": "[]",
    "wrong types": '{"response": [1, 2], "done": "perhaps"}',
    "error chunk": dict(error="an error was encountered while running the model: CUDA error"),
}
LOADS_NS, PROMPT_NS, DECODE_NS = 3_000_000, 40_000_000, 160_000_000


@dataclass
class Replay:
    """What the server holds, and how it is to behave. fault: "" or the name of one (see `answer` and `Handler`)."""

    tokenizer: object
    # repeated for as long as is asked
    answer: list[str] = field(default_factory=lambda: [" The", " sky", " is", " blue"])
    fault: str = ""
    at: int = 2  # chunks before a fault
    version: str = "0.12.0"
    ends: int | None = None  # tokens after which the text is at its end
    cut: int | None = None  # chunks after which it has sent all, without the text being at its end
    extra: int = 0  # that the server counts too many
    lives: int | None = None  # requests for an answer after which it drops whatever comes, as a dead process does
    models: dict = field(default_factory=dict)
    blobs: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)  # (path, body) of every request
    released: threading.Event = field(default_factory=threading.Event)  # ends a hang

    def requests(self, path: str) -> list:
        return [body for asked, body in self.asked if asked == path]

    def parts(self, body: dict) -> list[str]:
        """Texts of the chunks of an answer: one token each."""
        count = body["options"]["num_predict"]
        pieces = (self.answer * count)[:count]
        return pieces[: self.cut if self.ends is None else self.ends]

    def last(self, body: dict, made: int) -> dict:
        """The chunk that ends an answer; the token that ends a text is counted and not sent."""
        ended = self.ends is not None and made < body["options"]["num_predict"]
        prompt = len(self.tokenizer.encode(body["prompt"], allow_special_tokens=True))
        counts = dict(eval_count=made + ended + self.extra, eval_duration=DECODE_NS, prompt_eval_count=prompt)
        times = dict(prompt_eval_duration=PROMPT_NS, load_duration=LOADS_NS)
        reason = "stop" if ended else "length"
        return dict(model=body["model"], response="", done=True, done_reason=reason, **counts, **times)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    replay: Replay

    @property
    def dead(self) -> bool:
        return self.replay.lives is not None and len(self.replay.requests("/api/generate")) > self.replay.lives

    def do_GET(self):
        if self.dead:
            return self.drop()
        self.replay.asked.append((self.path, None))
        if self.replay.fault == "deaf":
            self.replay.released.wait(30)
        if self.replay.fault == "not ollama":
            return self.reply(200, "<html>It works!</html>", kind="text/html")
        if self.path == "/api/version":
            if not self.replay.version:
                return self.reply(404, "404 page not found")
            return self.reply(200, dict(version=self.replay.version))
        return self.reply(200, dict(models=[dict(model=name) for name in self.replay.models]))

    def do_POST(self):
        raw, replay = self.body(), self.replay
        body = None if self.path.startswith("/api/blobs/") else json.loads(raw)
        replay.asked.append((self.path, body))
        if self.dead:
            return self.drop()
        if self.path.startswith("/api/blobs/"):
            digest = self.path.rpartition("/")[2]
            if digest != f"sha256:{hashlib.sha256(raw).hexdigest()}":
                return self.reply(400, dict(error="digest mismatch"))
            replay.blobs[digest] = len(raw)
            return self.reply(201, "")
        return {"/api/create": self.create, "/api/generate": self.generate}[self.path](body)

    def create(self, body: dict):
        replay = self.replay
        if replay.fault == "create refused":
            return self.reply(400, dict(error="neither 'from' or 'files' was specified"))
        if replay.fault == "create dropped":
            return self.drop()
        if not set(body["files"].values()) <= set(replay.blobs):
            return self.reply(400, dict(error="no such blob"))
        if replay.fault == "create half done":
            return self.reply(200, dict(status="parsing GGUF"))
        replay.models[body["model"] + ":latest"] = body
        return self.reply(200, dict(status="success"))

    def generate(self, body: dict):
        replay = self.replay
        if f"{body['model']}:latest" not in replay.models or replay.fault == "model gone":
            return self.reply(404, dict(error=f"model '{body['model']}' not found"))
        if not body.get("prompt"):
            return self.reply(200, dict(model=body["model"], response="", done=True, done_reason="unload"))
        if replay.fault == "http 500":
            return self.reply(500, dict(error="llama runner process has terminated"))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        parts = replay.parts(body)
        for i, text in enumerate(parts):
            if i == replay.at and self.failed():
                return None
            self.chunk(dict(model=body["model"], response=text, done=False))
        if replay.fault != "no end":
            self.chunk(replay.last(body, len(parts)))
        return self.end()

    def failed(self) -> bool:
        """Carry the fault out, in the middle of an answer; whether the answer is over."""
        fault = self.replay.fault
        if fault in BROKEN:
            self.chunk(BROKEN[fault])
            self.end()
        elif fault == "hang":
            self.replay.released.wait(30)
        if fault in ("hang", "dropped"):
            self.drop()
        return fault in (*BROKEN, "hang", "dropped")

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def reply(self, status: int, body: dict | str, kind: str = "application/json") -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def chunk(self, part: dict | str) -> None:
        data = ((part if isinstance(part, str) else json.dumps(part)) + "\n").encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def drop(self) -> None:
        """Close the connection in the middle."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *arguments):
        pass


class Server(ThreadingHTTPServer):
    """The replay on a free port of 127.0.0.1; use in a `with`."""

    daemon_threads = True

    def __init__(self, replay: Replay):
        super().__init__(("127.0.0.1", 0), type("Replaying", (Handler,), dict(replay=replay)))
        self.replay, self.open = replay, []
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def process_request(self, request, address):
        self.open.append(request)
        super().process_request(request, address)

    def handle_error(self, request, address):
        pass  # a client that leaves is no news

    def stop(self) -> None:
        """As if the process had died: nothing listens any more, and connections that were kept are closed."""
        self.replay.released.set()
        self.shutdown()
        self.server_close()
        self.thread.join()
        for request in self.open:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def __exit__(self, *exception):
        self.stop()
