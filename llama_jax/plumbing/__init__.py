"""What a program needs beside the language model: paths, files, values, threads, errors, checks of JAX."""
