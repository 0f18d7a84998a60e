"""The demo's story with a real daemon and real engine processes, on a tiny model."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tierkv.demo import story
from tierkv.demo.child import EngineProcess, engine_command
from tierkv.errors import UnavailableError

pytestmark = pytest.mark.slow


class Steps:
    def __init__(self):
        self.steps = []

    def step(self, text):
        self.steps.append(text)


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    """A model folder with a word tokenizer, a context of 256 tokens and no chat template."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    words = sorted(set(story.document().split() + story.QUESTION.split()))
    vocabulary = {word: idx for idx, word in enumerate(["<pad>", "<unk>", *words])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_every_answer_of_the_story_is_the_first_one_and_restored(tiny_folder, tmp_path_factory, monkeypatch):
    tmp_path = tmp_path_factory.mktemp("t")  # short: the path of a Unix socket below it has at most 107 bytes
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shared = tmp_path / "shm"  # the machine's own may have other people's entries
    shared.mkdir()
    monkeypatch.setattr(story, "SHARED_MEMORY", shared)
    steps = Steps()
    options = story.StoryOptions(tiny_folder, new_tokens=8, block_tokens=4, host_memory="16MiB", disk="64MiB", keep=False)
    told = story.tell(options, steps)

    assert [run.name for run in told.runs] == ["cold", "same_process", "engine_restart", "after_sigkill", "after_reboot"]
    assert told.passed
    assert all(run.identical for run in told.runs)
    assert [run.tier for run in told.runs] == [None, "host", "host", "host", "disk"]
    restored = told.runs[1].restored_tokens
    assert 0 < restored < told.prompt_tokens
    assert [run.restored_tokens for run in told.runs] == [0, restored, restored, restored, restored]
    assert 150 < told.prompt_tokens < 256  # cut to what the context holds
    assert told.new_tokens == 8
    json.dumps(dataclasses.asdict(told))
    assert steps.steps.count("loading the model") == 4
    assert list(tmp_path.iterdir()) == [shared]
    assert list(shared.iterdir()) == []


def test_a_folder_without_a_model_is_told_with_the_reason(tmp_path):
    command = engine_command(tmp_path, tmp_path / "run", 16)
    with EngineProcess(command, log=tmp_path / "log") as engine:
        engine.start()
        with pytest.raises(UnavailableError, match="ended by itself"):
            engine.wait_ready()
