"""What is loaded from folders and files, and what is refused before anything is read."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
import transformers

from tests.unit.engine.small_tokenizers import BYTE_LEVEL
from tests.unit.engine.tiny_models import CONFIGS, SMALL, VOCABULARY, WINDOW, page_memory, random_model, scaled
from tierkv.demo.model import bundled_gguf, bundled_model_folder
from tierkv.engine.config import ModelConfig
from tierkv.engine.model import Span, Transformer
from tierkv.engine.weights import load
from tierkv.errors import InvalidRequestError
from tierkv.integrations.prefix import PrefixCache
from tierkv.integrations.transformers import attach
from tierkv.testing.fake_store import FakeBlockStore

BLOCK = 4


def config_of(config: Any, **arguments: Any) -> ModelConfig:
    return ModelConfig.from_transformers(config, **arguments)


def test_a_config_is_read_once_and_whole():
    config = config_of(CONFIGS["qwen2, windows in some layers"](), dtype="bfloat16")
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (3, 4, 2, 16)
    assert config.windows == (None, WINDOW, WINDOW)
    assert (config.context_tokens, config.eos_token_ids, config.torch_dtype) == (512, (2,), torch.bfloat16)
    assert config.layout(16).shape == (3, 2, 2, 16, 16)
    assert config_of(CONFIGS["mistral, windows"]()).windows == (WINDOW,) * 3
    assert config_of(CONFIGS["mistral, one kv head"]()).windows == (None,) * 3


def test_ends_of_sequence_come_from_the_generation_config_first():
    generation = transformers.GenerationConfig(eos_token_id=[5, 7])
    assert config_of(CONFIGS["llama"](), generation_config=generation).eos_token_ids == (5, 7)
    assert config_of(CONFIGS["llama"](), generation_config=transformers.GenerationConfig()).eos_token_ids == (2,)
    assert config_of(transformers.LlamaConfig(**{**SMALL, "eos_token_id": None})).eos_token_ids == ()


@pytest.mark.parametrize(
    ("config", "dtype", "message"),
    [
        (transformers.GPT2Config, "float32", r"architecture='gpt2', supported='llama, mistral, qwen2, qwen3'"),
        (lambda: transformers.MixtralConfig(**SMALL), "float32", "architecture='mixtral'"),
        (CONFIGS["llama"], "int8", "dtype='int8'"),
        (lambda: transformers.LlamaConfig(**SMALL, hidden_act="gelu"), "float32", "activation='gelu'"),
        (lambda: transformers.LlamaConfig(**SMALL, rope_parameters=scaled("dynamic")), "float32", "rope_type='dynamic'"),
        (
            lambda: transformers.LlamaConfig(**SMALL, rope_parameters={**scaled("linear"), "partial_rotary_factor": 0.5}),
            "float32",
            "whole heads",
        ),
    ],
)
def test_what_the_engine_cannot_compute_is_refused_by_name(config, dtype, message):
    with pytest.raises(InvalidRequestError, match=message):
        config_of(config(), dtype=dtype)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "llama"
    random_model(CONFIGS["llama, tied, with biases"]()).save_pretrained(path)
    return path


def test_a_folder_gives_the_model_that_transformers_loads_from_it(folder):
    own = load(folder)
    assert own.tokenizer is None
    transformer = Transformer(own)
    transformer.bind(page_memory(own.layout(BLOCK), 8))
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    token_ids = list(range(3, 20))
    with torch.inference_mode():
        expected = theirs(torch.tensor([token_ids])).logits[0, -1:]
    torch.testing.assert_close(
        transformer.forward([Span(token_ids, 0, [6, 2, 4, 0, 1], wants_logits=True)]), expected, rtol=0, atol=1e-4
    )


def test_weights_come_in_the_dtype_that_was_asked_for(folder):
    own = load(folder, dtype="bfloat16")
    assert own.weights.embedding.dtype == torch.bfloat16
    assert own.layout(BLOCK).dtype == own.identity.kv_dtype == "bfloat16"


def test_blocks_of_the_transformers_integration_serve_the_engine(folder):
    store = FakeBlockStore()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.pad_token_id = 0
    token_ids = torch.randint(3, VOCABULARY, (1, 18), generator=torch.Generator().manual_seed(4))
    attachment = attach(model, store, block_tokens=BLOCK, tenant="someone")
    expected = model.generate(token_ids, attention_mask=torch.ones_like(token_ids), max_new_tokens=1, do_sample=False)
    attachment.close()

    own = load(folder)
    memory = page_memory(own.layout(BLOCK), 8)
    found = PrefixCache(store, dataclasses.replace(own.identity, tenant="someone"), own.layout(BLOCK)).load(token_ids[0].numpy())
    with found:
        assert found.num_blocks == 4
        blocks = [bytes(block) for run in found.runs() for block in run.blocks]
    pages = [5, 1, 7, 2, 0]
    for page, block in zip(pages, blocks, strict=False):
        memory.pages[page].view(torch.uint8).view(-1).copy_(torch.frombuffer(bytearray(block), dtype=torch.uint8))
    transformer = Transformer(own)
    transformer.bind(memory)
    logits = transformer.forward([Span(token_ids[0, 16:].tolist(), 16, pages, wants_logits=True)])
    assert int(logits.argmax()) == int(expected[0, -1])
    whole = transformer.forward([Span(token_ids[0].tolist(), 0, [3, 4, 6, 1, 0], wants_logits=True)])
    torch.testing.assert_close(logits, whole, rtol=0, atol=1e-4)


def test_a_path_that_is_no_model_is_refused_by_name(tmp_path, folder):
    with pytest.raises(InvalidRequestError, match=r"no model here.*nowhere"):
        load(tmp_path / "nowhere")
    with pytest.raises(InvalidRequestError, match=r"no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(InvalidRequestError, match=r"no \*\.safetensors"):
        load(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"never unpickled")
    with pytest.raises(InvalidRequestError, match=r"no \*\.safetensors"):
        load(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(InvalidRequestError, match="no model here"):
        load(tmp_path / "model.bin")


def test_an_unknown_architecture_is_refused_before_its_weights_are_read(tmp_path):
    transformers.GPT2Config(n_embd=8, n_layer=1, n_head=1).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(InvalidRequestError, match="gpt2"):
        load(tmp_path)


@pytest.mark.model
def test_a_gguf_file_gives_the_bundled_model():
    gguf = bundled_gguf()
    if gguf is None:
        pytest.skip("the bundled model is not installed")
    own, plain = load(gguf), load(bundled_model_folder())
    assert own.tokenizer("A line.")["input_ids"] == plain.tokenizer("A line.")["input_ids"]
    assert own.config == plain.config
    torch.testing.assert_close(own.weights.embedding, plain.weights.embedding, rtol=1e-2, atol=1e-3)


def edited(**fields):
    def edit(file):
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))

    return edit


def cut(size):
    return lambda file: file.write_bytes(file.read_bytes()[:size])


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("model.safetensors", cut(0), "cannot be read"),
        ("model.safetensors", cut(100_000), "cannot be read"),
        ("config.json", cut(5), "cannot be read"),
        ("config.json", edited(num_attention_heads=0), "cannot be read"),
        ("config.json", edited(hidden_size=128), "cannot be read"),
        ("config.json", edited(num_hidden_layers=4), "lack weights"),
        ("tokenizer.json", cut(1000), "cannot be read"),
        ("tokenizer_config.json", cut(5), "cannot be read"),
    ],
    ids=[
        "no weights",
        "cut weights",
        "cut config",
        "no heads",
        "other width",
        "more layers",
        "cut tokenizer",
        "cut tokenizer config",
    ],
)
def test_a_damaged_folder_is_refused(name, damage, message, tmp_path):
    random_model(CONFIGS["llama"]()).save_pretrained(tmp_path)
    BYTE_LEVEL.save_pretrained(tmp_path)
    assert load(tmp_path).tokenizer is not None
    damage(tmp_path / name)
    with pytest.raises(InvalidRequestError, match=message):
        load(tmp_path)
