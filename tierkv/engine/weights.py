"""A model's weights as the engine wants them, loaded from a local folder of safetensors or from a GGUF file.

transformers reads the files, so that the engine has the very weights, config and identity of the transformers integration: blocks
of one are found by the other. Its module is taken apart layer by layer while the matrices are joined, so that memory never
holds the model twice.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tierkv.engine.config import DTYPES, ModelConfig
from tierkv.engine.linear import Linear, linear
from tierkv.errors import InvalidRequestError, TierKVError
from tierkv.integrations.fingerprint import identity_of
from tierkv.model.layout import Layout
from tierkv.model.namespace import Identity

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """One decoder layer. qkv — rows of all query heads, then key heads, then value heads; gate_up — gate's rows, then up's."""

    attention_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """embedding — (vocab_size, hidden_size); head — of the same shape, and of the same values where they are tied."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: Linear


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """What `load` found. tokenizer — of transformers; None for a folder without one, whose prompts must be token ids.

    identity — without tenant and salt; `dataclasses.replace` adds them.
    """

    config: ModelConfig
    weights: Weights
    tokenizer: Any
    identity: Identity

    def layout(self, block_tokens: int) -> Layout:
        """Layout of this model's blocks."""
        return self.config.layout(block_tokens)


def load(path: Path | str, *, dtype: str = "float32", device: str = "cpu") -> LoadedModel:
    """Loads a model from this machine's disk; nothing is ever fetched. Reads all weights, and once more for their fingerprint.

    path — a folder with `config.json` and `*.safetensors`, or a file `*.gguf` (slow: it is unpacked). dtype — a key of DTYPES.
    Raises InvalidRequestError for a path that is neither, for files that are damaged, lack weights or do not fit each other, and for
    what `ModelConfig.from_transformers` refuses.
    """
    folder, arguments = _source(Path(path))
    with _quietly(is_gguf="gguf_file" in arguments), _refusing(path):
        from transformers import AutoConfig, AutoModelForCausalLM

        # Refused before gigabytes are read.
        ModelConfig.from_transformers(AutoConfig.from_pretrained(folder, **arguments), dtype=dtype)
        # By its stubs it returns a module, whatever it is asked for.
        loader: Any = AutoModelForCausalLM
        module, found = loader.from_pretrained(folder, dtype=DTYPES[dtype], output_loading_info=True, **arguments)
        _check_complete(found["missing_keys"], path)
        tokenizer = _tokenizer(folder, arguments)
    config = ModelConfig.from_transformers(module.config, dtype=dtype, generation_config=module.generation_config)
    identity = identity_of(module, kv_dtype=dtype)
    return LoadedModel(config, take_weights(module, device), tokenizer, identity)


@contextlib.contextmanager
def _refusing(path: Path | str) -> Iterator[None]:
    """Whatever transformers says of files that it cannot read: its readers have no error of their own."""
    try:
        yield
    except (TierKVError, ImportError, MemoryError):
        raise
    except Exception as error:
        kind = type(error).__name__
        raise InvalidRequestError("these files cannot be read as a model", path=path, error=f"{kind}: {error}") from error


def _check_complete(missing: Collection[str], path: Path | str) -> None:
    """transformers gives weights that the files lack random values, and goes on."""
    if missing:
        raise InvalidRequestError("the files lack weights of this model", path=path, missing=len(missing), first=min(missing))


def take_weights(module: Any, device: torch.device | str = "cpu") -> Weights:
    """Moves the weights of a causal language model of transformers out of it; the module cannot run any more afterwards."""
    decoder = module.model
    layers: list[LayerWeights] = []
    for idx in range(len(decoder.layers)):
        layers.append(_take_layer(decoder.layers[idx], device))
        decoder.layers[idx] = torch.nn.Identity()
    embedding = _moved(decoder.embed_tokens.weight, device)
    head = _joined([module.lm_head], device)
    return Weights(embedding, tuple(layers), _moved(decoder.norm.weight, device), head)


def _take_layer(layer: Any, device: torch.device | str) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    return LayerWeights(
        attention_norm=_moved(layer.input_layernorm.weight, device),
        qkv=_joined([attention.q_proj, attention.k_proj, attention.v_proj], device),
        q_norm=_moved(attention.q_norm.weight, device) if hasattr(attention, "q_norm") else None,
        k_norm=_moved(attention.k_norm.weight, device) if hasattr(attention, "k_norm") else None,
        output=_joined([attention.o_proj], device),
        mlp_norm=_moved(layer.post_attention_layernorm.weight, device),
        gate_up=_joined([mlp.gate_proj, mlp.up_proj], device),
        down=_joined([mlp.down_proj], device),
    )


def _joined(parts: list[Any], device: torch.device | str) -> Linear:
    """Matrices of one input as one matrix."""
    weights = [part.weight.detach() for part in parts]
    biases = [part.bias.detach() for part in parts if part.bias is not None]
    weight = torch.cat(weights) if len(weights) > 1 else weights[0]
    bias = (torch.cat(biases) if len(biases) > 1 else biases[0]) if biases else None
    return linear(weight.to(device), bias.to(device) if bias is not None else None)


def _moved(weight: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    return weight.detach().to(device)


def _source(path: Path) -> tuple[Path, dict[str, Any]]:
    """The folder and the arguments that make transformers read `path` and nothing else."""
    if path.is_file() and path.suffix == ".gguf":
        return path.parent, {"gguf_file": path.name, "local_files_only": True}
    if not path.is_dir():
        raise InvalidRequestError("no model here; name a folder with config.json and *.safetensors, or a file *.gguf", path=path)
    if not (path / "config.json").is_file():
        raise InvalidRequestError("this folder has no config.json, so it is no model of transformers", path=path)
    if not any(path.glob("*.safetensors")):
        raise InvalidRequestError("this folder has no *.safetensors; convert its weights to that format first", path=path)
    return path, {"local_files_only": True, "use_safetensors": True}


def _tokenizer(folder: Path, arguments: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    own = {name: value for name, value in arguments.items() if name != "use_safetensors"}
    if "gguf_file" not in own and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    return AutoTokenizer.from_pretrained(folder, **own)


@contextlib.contextmanager
def _quietly(*, is_gguf: bool) -> Iterator[None]:
    """Without progress bars, neither those of transformers nor those that its reader of GGUF draws by itself."""
    from transformers.utils import logging

    were_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers has no annotation
    try:
        with contextlib.redirect_stderr(io.StringIO()) if is_gguf else contextlib.nullcontext():
            yield
    finally:
        if were_on:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # as above
