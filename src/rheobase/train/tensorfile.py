"""The bytes of a safetensors file without copying the tensors, so that a thread that writes them hardly holds the GIL.

https://github.com/huggingface/safetensors#format
"""

import json

import torch
from torch import Tensor

NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
ALIGNMENT = 8  # of the first tensor


def chunks(tensors: dict[str, Tensor]) -> list[memoryview]:
    """Return the file for `tensors` in pieces: its header, then every tensor, wider types first."""
    header, contents, end = {}, [], 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        if tensor.dtype not in NAMES:
            raise ValueError(f"{name} has the type {tensor.dtype}, which a checkpoint cannot hold; convert it")
        content = _content(tensor)
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + len(content)],
        }
        contents.append(content)
        end += len(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return [memoryview(len(text).to_bytes(8, "little") + text), *contents]


def _content(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
