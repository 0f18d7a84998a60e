"""Whose keys and values are these? The identity of a loaded torch model, from its memory, and of weights that lie in files.

What it leaves to others: the namespace id, which `Identity.fingerprint` derives together with the layout.

Invariants: equal memory gives equal text on every device and in every process; names of models and files take no part. Models up to
WHOLE_MODEL_BYTES are hashed byte by byte (BLAKE3 runs at 7-13 GB/s here, so 540 MB cost 80 ms once); above it every tensor adds
its name, dtype, shape and SAMPLE_BYTES in evenly spaced pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from tierkv.errors import InvalidRequestError
from tierkv.model.namespace import Identity

WHOLE_MODEL_BYTES = 4 << 30
SAMPLE_BYTES = 64 << 10
SAMPLE_PIECES = 16
SAFETENSORS_HEADER_LIMIT = 100_000_000
"""Bound of a safetensors header; the format's own library refuses larger ones."""
CONFIG_TEXT_LIMIT = 16 << 10
"""A longer config is replaced by its hash, so that an identity stays below its own limit."""

_CONTEXT = "tierkv 2026 weights v1"

# Config keys that never change a key or a value: names, outputs asked for, special tokens, defaults of generation and training.
VOLATILE_CONFIG_KEYS = frozenset(
    {
        "_name_or_path",
        "transformers_version",
        "use_cache",
        "architectures",
        "auto_map",
        "dtype",
        "torch_dtype",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "id2label",
        "label2id",
        "problem_type",
        "attention_dropout",
        "initializer_range",
        "_attn_implementation",
        "_attn_implementation_autoset",
    }
)


def identity_of(model: torch.nn.Module, tenant: str = "", salt: str = "", kv_dtype: str = "") -> Identity:
    """The identity of a loaded model: its weights, config and active adapters.

    model — any module with a `config` that has `to_dict()`, on any device; only read. tenant, salt — separation asked for by the
    user. kv_dtype — dtype of K and V, when it is known. Raises InvalidRequestError for weights without memory (meta device).
    Cost: reads every weight once (see the module head).
    """
    return Identity(
        weights=fingerprint_model(model),
        config=canonical_config(getattr(model, "config", None)),
        kv_dtype=kv_dtype,
        lora=adapter_state(model),
        tenant=tenant,
        salt=salt,
    )


def fingerprint_model(model: torch.nn.Module) -> str:
    """Hex BLAKE3 over names, dtypes, shapes and bytes of all parameters and buffers. Raises InvalidRequestError for meta tensors."""
    leaves = sorted(_leaves(model), key=lambda leaf: leaf[0])
    total_bytes = sum(tensor.numel() * tensor.element_size() for _, tensor in leaves)
    hasher = blake3(derive_key_context=_CONTEXT, max_threads=blake3.AUTO)
    for name, tensor in leaves:
        if tensor.device.type == "meta":
            raise InvalidRequestError("a weight has no memory (meta device); load the model first", weight=name)
        hasher.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        for piece in _pieces(tensor, whole=total_bytes <= WHOLE_MODEL_BYTES):
            hasher.update(piece.cpu().numpy().data)
    return hasher.hexdigest()


def fingerprint_files(path: Path | str) -> str:
    """Hex BLAKE3 of weights at rest, for callers without a loaded model.

    path — one file (GGUF or any other: hashed whole) or a folder of `*.safetensors` (headers, sizes and a sample of each file).
    Raises InvalidRequestError when there is neither.
    """
    source = Path(path)
    hasher = blake3(derive_key_context=_CONTEXT, max_threads=blake3.AUTO)
    if source.is_file():
        return hasher.update_mmap(str(source)).hexdigest()
    files = sorted(source.glob("*.safetensors")) if source.is_dir() else []
    if not files:
        raise InvalidRequestError("no weights here; give a folder with *.safetensors or one file", path=source)
    for file in files:
        for part in _file_parts(file):
            hasher.update(part)
    return hasher.hexdigest()


def canonical_config(config: Any) -> str:
    """The config as canonical JSON without VOLATILE_CONFIG_KEYS; its hash when it is longer than CONFIG_TEXT_LIMIT."""
    fields = config.to_dict() if hasattr(config, "to_dict") else {}
    text = json.dumps(_stable(fields), sort_keys=True, separators=(",", ":"), default=str)
    return text if len(text) <= CONFIG_TEXT_LIMIT else f"blake3:{blake3(text.encode()).hexdigest()}"


def adapter_state(model: torch.nn.Module) -> str:
    """Which adapters act now (PEFT); "" without any. Their weights are ordinary parameters and already in the fingerprint."""
    states = []
    for name, module in model.named_modules():
        active = getattr(module, "_active_adapter", None)
        if active is not None:
            disabled = bool(getattr(module, "_disable_adapters", False))
            states.append([name, str(active), disabled, str(getattr(module, "scaling", ""))])
    return blake3(json.dumps(states).encode()).hexdigest() if states else ""


class WeightsWatch:
    """Notices that weights changed since the last look, at about 1 ms a look, so that an online update never meets old KV.

    Three cheap signs: the place of each tensor (`param.data = …`), its version counter (in-place operations) and one element of
    it, because `param.data.copy_(…)`, usual in online training, moves neither of the other two.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._seen = self._signs()

    def changed(self) -> bool:
        """True once for every change: the next call compares with the state of this one."""
        now = self._signs()
        same = now == self._seen
        self._seen = now
        return not same

    def _signs(self) -> tuple[object, ...]:
        tensors = [*self._model.parameters(), *self._model.buffers()]
        places = tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors)  # noqa: SLF001 - the only name it has
        return places, _middle_elements(tensors), adapter_state(self._model)


def _middle_elements(tensors: list[torch.Tensor]) -> tuple[float, ...]:
    by_place: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for tensor in tensors:
        # A quantised subclass may not offer indexing; its version counter and place still speak for it.
        if tensor.numel() and type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type != "meta":
            middle = tensor.detach()[tuple(extent // 2 for extent in tensor.shape)]
            by_place.setdefault((tensor.device, tensor.dtype), []).append(middle)
    values: list[float] = []
    for group in by_place.values():
        values.extend(torch.nan_to_num(torch.stack(group).double()).tolist())
    return tuple(values)


def _leaves(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    # state_dict also holds what quantisers keep beside their packed weights; non-persistent buffers (RoPE) are only in buffers().
    named: dict[str, object] = dict(model.state_dict(keep_vars=True))
    named.update(model.named_parameters(remove_duplicate=False))
    named.update(model.named_buffers(remove_duplicate=False))
    for name, value in named.items():
        if isinstance(value, torch.Tensor):
            yield from _plain(name, value.detach())


def _plain(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensor subclasses (torchao and others) as the plain tensors they are made of."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield name, tensor
        return
    for attribute in flatten()[0]:
        yield from _plain(f"{name}.{attribute}", getattr(tensor, attribute))


def _pieces(tensor: torch.Tensor, *, whole: bool) -> Iterator[torch.Tensor]:
    if tensor.numel() == 0:
        return
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    for start, stop in _spans(flat.numel(), SAMPLE_BYTES if not whole else flat.numel()):
        yield flat[start:stop]


def _spans(length: int, budget: int) -> Iterator[tuple[int, int]]:
    """Half-open byte spans: all of it when it fits the budget, else SAMPLE_PIECES spans from the first byte to the last."""
    if length <= budget:
        yield 0, length
        return
    piece = budget // SAMPLE_PIECES
    for idx in range(SAMPLE_PIECES):
        start = (length - piece) * idx // (SAMPLE_PIECES - 1)
        yield start, start + piece


def _file_parts(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        header_bytes = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or header_bytes > min(size, SAFETENSORS_HEADER_LIMIT):
            raise InvalidRequestError("not a safetensors file", path=file)
        yield json.dumps([file.name, size]).encode()
        yield prefix + stream.read(header_bytes)
        for start, stop in _spans(size, SAMPLE_BYTES * SAMPLE_PIECES):
            stream.seek(start)
            yield stream.read(stop - start)


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _stable(item) for key, item in value.items() if str(key) not in VOLATILE_CONFIG_KEYS}
    if isinstance(value, list | tuple):
        return [_stable(item) for item in value]
    return value
