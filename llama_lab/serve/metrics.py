"""What a server counts, for Prometheus (https://prometheus.io/docs/instrumenting/exposition_formats/)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = tuple(round(base * 10**power, 9) for power in range(-3, 2) for base in (1, 2, 5))  # 1 ms to 50 s
REASONS = ("stop", "length", "cancelled", "error")


class Metrics:
    """The counters of one server, each in a registry of its own."""

    def __init__(self):
        self.registry = CollectorRegistry()

        def made(kind: type, name: str, about: str, **options):
            return kind(f"llama_jax_{name}", about, registry=self.registry, **options)

        self.requests = made(Counter, "requests", "Requests that ended, by how", labelnames=("reason",))
        for reason in REASONS:
            self.requests.labels(reason)
        self.refused = made(Counter, "refused", "Requests refused because too many waited")
        self.waiting = made(Gauge, "requests_waiting", "Requests in the queue")
        self.running = made(Gauge, "requests_running", "Requests in slots")
        self.prompt_tokens = made(Counter, "prompt_tokens", "Tokens of prompts")
        self.reused_tokens = made(Counter, "prompt_tokens_reused", "Tokens of prompts whose keys a slot still had")
        self.tokens = made(Counter, "tokens", "Tokens made")
        self.first_token = made(Histogram, "first_token_seconds", "From request to first token", buckets=SECONDS)
        self.inter_token = made(Histogram, "inter_token_seconds", "Between two tokens", buckets=SECONDS)
        self.programs = made(Gauge, "programs", "Programs compiled before the first request")
        self.warm_seconds = made(Gauge, "warm_seconds", "What that took")
        self.compilations = made(Gauge, "compilations_in_service", "Programs compiled since: the guard's count")

    def text(self) -> bytes:
        return generate_latest(self.registry)
