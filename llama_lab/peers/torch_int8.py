"""PyTorch's dynamic quantisation: int8 weights, activations rounded to 8 bits before each product, everything else in
float32.

`torch.ao.quantization.quantize_dynamic` is deprecated in favour of torchao, a package of its own that this project does
not install; it is what PyTorch has by itself, and what most guides to int8 on a CPU mean. Weights have one scale an
output channel: one a tensor, the default, is no faster and further from the model. Only linear layers change, the head
among them; a tied embedding stays in float32 for looking tokens up, so its table is held twice.
"""

from __future__ import annotations

import warnings

import torch
from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic
from transformers.pytorch_utils import Conv1D

from llama_lab.peers import torch_eager, torch_model


def quantised(module: torch.nn.Module) -> torch.nn.Module:
    """A module that multiplies in int8, made of one of `torch_model`; that one stays as it is, and what is not
    quantised is shared."""
    made = torch_model.twin(module, module.config._attn_implementation)
    for name, part in list(made.named_modules()):
        if isinstance(part, Conv1D):  # GPT-2's linear layers, which hold their weights [in, out]
            made.set_submodule(name, linear(part))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated: see above
        return quantize_dynamic(made, {torch.nn.Linear: per_channel_dynamic_qconfig}, inplace=True)


def linear(part: Conv1D) -> torch.nn.Linear:
    """The same product as PyTorch's own layer."""
    made = torch.nn.Linear(*part.weight.shape, device="meta")
    made.weight, made.bias = torch.nn.Parameter(part.weight.T.contiguous(), False), torch.nn.Parameter(part.bias, False)
    return made


def growing(module: torch.nn.Module):
    """As `torch_eager.growing`, in int8."""
    return torch_eager.growing(quantised(module))
