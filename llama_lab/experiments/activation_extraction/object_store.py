"""An object store on this machine: moto's server, which speaks S3 over HTTP, in its own process.

It has no network in front of it, and its Python shares the cores with whoever uses it. `delay` adds to each request
what a distant store would take to answer it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import parent, process

NAME = "object store"
NEEDS = ("s3fs", "moto", "flask", "flask_cors")
BUCKET = "activations"
SETTINGS = dict(AWS_ACCESS_KEY_ID="nobody", AWS_SECRET_ACCESS_KEY="nothing", AWS_DEFAULT_REGION="us-east-1")


def missing() -> list[dict]:
    """Why there can be no such store here: {name, reason, remedy}; nothing where there can."""
    absent = [name for name in NEEDS if find_spec(name) is None]
    return [dict(name=NAME, reason=f"{name} is not installed", remedy="make s3") for name in absent[:1]]


@contextlib.contextmanager
def running(delay: float = 0.0) -> Iterator[str]:
    """The URL of an empty bucket in a fresh server, which ends with the block. Within it, clients of S3 in this process
    and its children find the server by their environment.

    delay: seconds that pass before each request is answered. Raises UserError if the server does not start.
    """
    for gap in missing():
        raise UserError(f"There is no {NAME}: {gap['reason']}; `{gap['remedy']}` adds what it needs.")
    import s3fs

    command = [sys.executable, "-m", __name__, str(delay), str(os.getpid())]
    environment = process.clean_environment(len(process.allowed_cores()))
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    before = dict(os.environ)
    with subprocess.Popen(command, env=environment, **pipes) as server:
        try:
            if not (port := server.stdout.readline().strip()):
                raise UserError(f"The {NAME} did not start: exit code {server.wait()} of {' '.join(command[1:3])}.")
            os.environ.update(SETTINGS | dict(AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}"))
            s3fs.S3FileSystem.clear_instance_cache()  # those of another server
            s3fs.S3FileSystem().mkdir(BUCKET)
            yield f"s3://{BUCKET}"
        finally:
            for name in (*SETTINGS, "AWS_ENDPOINT_URL"):
                os.environ.pop(name, None)
                os.environ.update({name: before[name]} if name in before else {})
            s3fs.S3FileSystem.clear_instance_cache()
            server.kill()


def main(delay: float, owner: int) -> None:
    """The server: says its port, then serves until its owner ends."""
    import moto.server
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Silent(WSGIRequestHandler):
        def log_request(self, *_) -> None:
            """One line per request would be a part of what is timed."""

    parent.follow(owner)
    application = moto.server.DomainDispatcherApplication(moto.server.create_backend_app)

    def delayed(environ, respond):
        time.sleep(delay)
        return application(environ, respond)

    server = make_server("127.0.0.1", 0, delayed, threaded=True, request_handler=Silent)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
