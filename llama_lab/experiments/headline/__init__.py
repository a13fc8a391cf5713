"""One interleaved run of some minutes that says what the repository claims, on any machine: `make figures` measures it
there, `make record` the one that is published."""
