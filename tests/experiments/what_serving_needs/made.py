"""Made-up requests whose numbers are known, and a server that answers as it is told."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from llama_lab.bench import COMPILED
from llama_lab.experiments.what_serving_needs.measure import REFUSED, Request

P = dict(
    placements=["step+donate", "step+fused"],
    peers=["ollama"],
    rates=[1.0, 4.0],
    one_rate=1.0,
    slots=4,
    shapes=["one", "buckets", "exact"],
    slot_rates=[1.0, 4.0],
    more_slots=[1, 4, 8],
)
META = dict(parameters=P, missing=[dict(name="llama.cpp's server", reason="None here.", remedy="")])
NOTES = [
    dict(server=name, slots=4, shapes=shape, programs=n, warm_s=2.5)
    for name in P["placements"]
    for shape, n in (("one", 4), ("buckets", 8), ("exact", 2))
]


def request(server="step+donate", rate=1.0, order=0, first_ms=100.0, gap_ms=20.0, pieces=5, **changes):
    """A request due at its place in a load; first_ms: from when it was due; pieces: 0 where it was refused."""
    refused = {} if pieces else dict(status=REFUSED, tokens=0)
    given = dict(
        run=server, block=0, order=order, process=1, seed=0, phase="warm", valid=True, server=server,
        backend="ollama" if server == "ollama" else "jax", model="m", weights_hash="w", slots=4, shapes="buckets",
        rate=rate, due_ns=round((order + 1) / rate * 1e9), sent_ns=1000, status=200, prompt_tokens=20, asked_tokens=5,
        tokens=pieces, piece_ns=[round(1e6 * (first_ms + gap_ms * i)) for i in range(pieces)],
        compiled=None if server == "ollama" else 0,
    )  # fmt: skip
    return Request(**given | refused | changes)


def campaign(n=12):
    """Two rates of three servers, the first of which refuses at the higher; shapes and slots at the lower."""
    rows = []
    for k, server in enumerate((*P["placements"], *P["peers"])):
        for rate in P["rates"]:
            late = 10 if k == 0 and rate > 1 else 1
            rows += [
                request(server, rate, i, first_ms=100 * late / (k + 1) + i, gap_ms=20 * late / (k + 1), gated=i < 2,
                        pieces=0 if late > 1 and i > n - 3 else 5)
                for i in range(n)
            ]  # fmt: skip
    for server in P["placements"]:
        rows += [request(server, 1.0, i, 150, shapes="one") for i in range(n)]
        rows += [request(server, 1.0, i, 400, shapes="exact", compiled=7) for i in range(n)]
    return rows + [request(rate=1.0, order=i, slots=k, first_ms=100 + 50 / k) for k in (1, 8) for i in range(n)]


def voided(rows):
    return [r.model_copy(update=dict(valid=False, reason=COMPILED)) for r in rows]


def line(text, **more):
    return json.dumps(dict(response=text, done=False) | more).encode() + b"\n"


LAST = line("", done=True, eval_count=2, prompt_eval_count=3)
ANSWER = [line("a"), line(" b"), LAST]


@contextlib.contextmanager
def serving(answer):
    """The address of a server whose answers are answer(body) → (status, lines)."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):  # the library's name
            status, lines = answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.send_header("Connection", "close")
            self.end_headers()
            for each in lines:
                self.wfile.write(each)

        def log_message(self, *said):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
