"""The verb `serve`."""

from __future__ import annotations

import os

from llama_lab.cli import options
from llama_lab.cli.common import tell
from llama_lab.cli.options import option, verb


@verb("`llama-jax serve --placement step+fused --slots 4`")
class Serve:
    """Answer Ollama's and OpenAI's clients."""

    model: str = options.model()
    placement: str = options.placement("step+donate")
    slots: int = option(4, "Requests that are answered at a time.")
    context: int | None = option(None, "Tokens of a prompt and its answer; 2048, or what the model has.")
    host: str = option("127.0.0.1", "Address to listen at; any but loopback needs a key.")
    port: int = option(11434, "0 lets the system choose.", min=0, max=65535)
    api_key: str | None = option(
        None, "Clients must send it; better set LLAMA_JAX_API_KEY, which no process list shows."
    )
    dtype: str = options.dtype()

    def run(self) -> None:
        from llama_jax import checkpoint
        from llama_jax.placement import parse
        from llama_lab.serve import process, stepper
        from llama_lab.serve.service import Service

        key = self.api_key if self.api_key is not None else os.environ.get("LLAMA_JAX_API_KEY") or None
        stepper.check(parse(self.placement))
        process.check_key(self.host, key)
        bound = process.bind(self.host, self.port)
        service = Service(checkpoint.load(self.model, self.dtype), self.placement, self.slots, self.context)
        tell(f"compiling {self.model} under {self.placement}")
        programs, seconds = service.start()
        address, number = bound.getsockname()[:2]
        at = f"http://{f'[{address}]' if ':' in address else address}:{number}"
        room = f"{self.slots} slots of {service.context} tokens"
        ready = f"{service.about.name} answers at {at}: {room}; {programs} programs compiled in {seconds:.1f} s"
        process.run(service, bound, key, lambda: print(ready, flush=True))
