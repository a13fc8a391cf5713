"""The same sites in transformers: forward hooks on its modules, each example alone, in eager attention."""

import jax
import numpy as np
import torch

from llama_jax.checkpoint import Checkpoint
from llama_lab.peers import torch_model
from tests.conftest import build


def random_checkpoint(config, seed=0):
    """A small random model whose norms and biases are random too, which ones and zeros would hide."""
    rng = np.random.default_rng(seed)
    params = jax.tree.map(
        lambda w: w + 0.3 * rng.standard_normal(w.shape).astype(np.float32) if w.ndim == 1 else w, build(config, seed)
    )
    return Checkpoint("random", config, params, None, "", "random:", "float32")


class Reference:
    """`of(ids)`: {site: float32 [T ...]} of one example, in the shapes of `spec.row_shape` but for the pattern's [T H
    T]."""

    def __init__(self, checkpoint):
        self.config = checkpoint.config
        self.model = torch_model.twin(torch_model.module(checkpoint.config, checkpoint.params), "eager")
        gpt2 = self.config.model_type == "gpt2"
        body = self.model.transformer if gpt2 else self.model.model
        self.seen = {}
        for i, block in enumerate(body.h if gpt2 else body.layers):
            attention, second = (block.attn, block.ln_2) if gpt2 else (block.self_attn, block.post_attention_layernorm)
            block.register_forward_pre_hook(self.before(f"resid_pre:{i}"))
            block.register_forward_hook(self.after(f"resid_post:{i}"))
            attention.register_forward_hook(self.after(f"attn_out:{i}"))
            second.register_forward_pre_hook(self.before(f"resid_mid:{i}"))
            block.mlp.register_forward_hook(self.after(f"mlp_out:{i}"))
            if gpt2:
                attention.c_attn.register_forward_hook(self.after(f"qkv:{i}"))
                continue
            for name in "qkv":
                getattr(attention, f"{name}_proj").register_forward_hook(self.after(f"{name}:{i}"))
        (body.ln_f if gpt2 else body.norm).register_forward_hook(self.after("ln_final"))

    def before(self, site):
        def hook(module, args):
            self.seen[site] = args[0][0].numpy().copy()

        return hook

    def after(self, site):
        def hook(module, args, out):
            self.seen[site] = (out[0] if isinstance(out, tuple) else out)[0].numpy().copy()

        return hook

    def of(self, ids):
        self.seen.clear()
        with torch.inference_mode():
            out = self.model(
                torch.tensor(ids)[None], output_hidden_states=True, output_attentions=True, use_cache=False
            )
        found = dict(self.seen) | {"logits": out.logits[0].float().numpy()}
        for i in range(self.config.num_hidden_layers):
            if f"qkv:{i}" in found:
                found |= zip((f"q:{i}", f"k:{i}", f"v:{i}"), np.split(found.pop(f"qkv:{i}"), 3, axis=-1), strict=True)
            for name in "qkv":
                found[f"{name}:{i}"] = found[f"{name}:{i}"].reshape(len(ids), -1, self.config.head_dim)
            found[f"pattern:{i}"] = out.attentions[i][0].transpose(0, 1).numpy()
            assert np.array_equal(found[f"resid_pre:{i}"], out.hidden_states[i][0])  # transformers says so itself, too
        assert np.array_equal(found["ln_final"], out.hidden_states[-1][0])  # its last one is after the final norm
        return found

    def rows(self, examples, length):
        """All examples' rows one below the other, each piece of at most `length` tokens alone; patterns [rows H
        length]."""
        pieces = [ids[start : start + length] for ids in examples for start in range(0, len(ids), length)]
        each = [self.of(ids) for ids in pieces]
        for found in each:
            for i in range(self.config.num_hidden_layers):
                short = found[f"pattern:{i}"]
                found[f"pattern:{i}"] = np.pad(short, ((0, 0), (0, 0), (0, length - short.shape[-1])))
        return {site: np.concatenate([found[site] for found in each]) for site in each[0]}
