"""What a language model does not have and a program needs: paths, files, values, threads, errors, checks of JAX."""
