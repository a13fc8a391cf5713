"""How tokens are made one after the other: requests, steps, drafts, pipelines, and programs kept in a file."""
