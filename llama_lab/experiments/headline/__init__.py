"""One interleaved run of a few minutes that supports the repository's claim: `make figures` measures it on any machine,
`make record` for publication."""
