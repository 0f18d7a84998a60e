"""The demo's story with real engine processes on a tiny model; each engine keeps its store itself, so that no daemon is needed."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import tierkv
from tierkv.demo import story
from tierkv.demo.child import EngineProcess, engine_command
from tierkv.errors import UnavailableError

pytestmark = pytest.mark.slow

# The child opens the store that its daemon would have opened. SIGKILL leaves its arena for the next one.
CHILD = """
import sys, tierkv
from tierkv.demo import engine
tierkv.connect = lambda run: tierkv.open_store(run.parent / "data", host_memory="16MiB", disk="64MiB")
sys.exit(engine.main())
"""


class NoDaemon:
    """What the story asks of a daemon, without one."""

    last: NoDaemon

    def __init__(self, options, *, log):
        self.options = options
        self.calls = []
        NoDaemon.last = self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.calls.append("end")

    def start(self):
        self.calls.append("start")

    def wait_ready(self):
        self.calls.append("ready")

    def kill(self):
        self.calls.append("kill")


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


def test_every_answer_of_the_story_is_the_first_one_and_restored(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(story, "DaemonProcess", NoDaemon)
    monkeypatch.setattr(story, "engine_command", lambda *given: [sys.executable, "-c", CHILD, *map(str, given)])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    steps = Steps()
    options = story.StoryOptions(tiny_folder, new_tokens=8, block_tokens=4, host_memory="16MiB", disk="64MiB", keep=True)
    told = story.tell(options, steps)
    # The last engine was killed with its store open; opening it once more gives the arena back.
    tierkv.open_store(NoDaemon.last.options.data, host_memory="16MiB", disk="64MiB").close()

    assert [run.name for run in told.runs] == ["cold", "same_process", "engine_restart", "after_sigkill", "after_reboot"]
    assert told.passed
    assert all(run.identical for run in told.runs)
    assert [run.restored_tokens > 0 for run in told.runs] == [False, True, True, True, True]
    assert told.runs[0].tier is None
    assert 150 < told.prompt_tokens < 256  # cut to what the context holds
    assert told.new_tokens == 8
    json.dumps(dataclasses.asdict(told))
    assert NoDaemon.last.calls == ["start", "ready", "kill", "start", "ready", "kill", "start", "ready", "end"]
    assert not NoDaemon.last.options.arena_folder.exists()
    assert steps.steps.count("loading the model") == 4


def test_a_folder_without_a_model_is_told_with_the_reason(tmp_path):
    command = engine_command(tmp_path, tmp_path / "run", 16)
    with EngineProcess(command, log=tmp_path / "log") as engine:
        engine.start()
        with pytest.raises(UnavailableError, match="ended by itself"):
            engine.wait_ready()
