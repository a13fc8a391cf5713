#!/bin/bash
# A Ray cluster of one's own, where there is none, and an extraction on it. llama-jax and Ray are on every machine.
#     ray.sh head                        on one of them; it ends with this command
#     ray.sh node HEAD:6379              on each of the others, at any time
#     ray.sh extract HEAD:6379 --source texts.jsonl --sites resid_post:14 --out /scratch/activations
set -euo pipefail
case "${1-}" in
    head) exec ray start --head --port="${PORT:-6379}" --block "${@:2}" ;;
    node) exec ray start --address="$2" --block "${@:3}" ;;
    extract) exec llama-jax extract --engine ray --address "$2" "${@:3}" ;;
    *) echo "usage: ray.sh head | node HEAD:PORT | extract HEAD:PORT OPTIONS" >&2; exit 2 ;;
esac
