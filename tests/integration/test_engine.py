"""Engines and a real daemon: one pool for several processes, kills on both sides, and the host tier as the place to swap to."""

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import transformers

import tierkv
from tierkv.engine.engine import Engine, EngineSettings, open_engine
from tierkv.engine.sampling import SamplingParams
from tierkv.engine.weights import load
from tierkv.testing.daemon import DaemonOptions, start_daemon
from tierkv.testing.deadline import wait_until

pytestmark = pytest.mark.slow

VOCABULARY = 128
BLOCK_TOKENS = 4
NEW = 8
PROMPT = [(idx * 5) % VOCABULARY for idx in range(90)]
SETTINGS = EngineSettings(block_tokens=BLOCK_TOKENS, max_batch_tokens=64, private_memory_bytes=1 << 20, retry_s=0.05)
NUM_PAGES = 64


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small random model at rest."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder):
    return load(folder)


@pytest.fixture(scope="module")
def texts(model):
    """What the model says with nobody beside it and nothing cached."""

    def text(prompt, count=NEW):
        settings = EngineSettings(block_tokens=BLOCK_TOKENS, private_memory_bytes=4 << 20)
        with Engine(model, settings=settings) as engine:
            return list(tokens_of(engine.complete([prompt], params(count)))[0])

    return text


@pytest.fixture
def daemon(tmp_path, model):
    pool_bytes = NUM_PAGES * model.layout(BLOCK_TOKENS).block_bytes
    options = DaemonOptions(
        data=tmp_path / "data",
        run_dir=tmp_path / "run",
        arena_folder=tmp_path / "arena",
        host_memory="16MiB",
        disk="32MiB",
        extra=("--device", f"cpu:{pool_bytes}"),
    )
    with start_daemon(options, log=tmp_path / "log") as daemon:
        yield daemon


class Child:
    """An engine in a process of its own."""

    def __init__(self, folder, daemon):
        script = Path(__file__).with_name("engine_child.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(folder), str(daemon.options.run_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == {"ready": True}

    def ask(self, prompts, max_tokens=NEW):
        self.send(prompts, max_tokens)
        return self.answer()

    def send(self, prompts, max_tokens):
        self.process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": max_tokens}) + "\n")
        self.process.stdin.flush()

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def end(self, *, kill=False):
        if kill:
            self.process.kill()
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@contextlib.contextmanager
def child_engine(folder, daemon):
    child = Child(folder, daemon)
    try:
        yield child
    finally:
        child.end(kill=child.process.poll() is None)


def params(count=NEW):
    return SamplingParams(max_tokens=count, ignore_eos=True)


def tokens_of(completions):
    return [completion.choices[0].token_ids for completion in completions]


def test_engines_share_a_pool_and_outlive_each_other(folder, daemon, texts):
    expected = texts(PROMPT)
    with open_engine(folder, daemon=daemon.options.run_dir, settings=SETTINGS) as engine:
        assert list(tokens_of(engine.complete([PROMPT], params()))[0]) == expected
        with child_engine(folder, daemon) as child:
            # What one process computed, the other reads in place.
            answer = child.ask([PROMPT])
            assert answer["token_ids"] == [expected]
            assert (answer["cached_tokens"], answer["cached_tiers"], answer["pages_copied"]) == ([88], ["device"], 0)
            child.send([[7] * 40], 1900)
            child.end(kill=True)
        # The kernel tells of the end of a process that could not; its pages are free again, and nobody else's bytes changed.
        probe = tierkv.connect(daemon.options.run_dir)
        layout, identity = engine.loaded.layout(BLOCK_TOKENS), engine.loaded.identity
        namespace = probe.register(identity, layout)
        probe.open_pool(namespace.namespace_id, "cpu")
        pages = []

        def all_but_the_stock():
            pages.extend(probe.reserve_pages(NUM_PAGES - len(pages)))
            return len(pages) >= NUM_PAGES - 2 * SETTINGS.reserve_pages

        wait_until(all_but_the_stock, timeout_s=20, what="the pages of the dead engine")
        probe.close()
        assert list(tokens_of(engine.complete([PROMPT], params()))[0]) == expected
    # All processes that had the blocks are gone, and the daemon still has them.
    with child_engine(folder, daemon) as child:
        answer = child.ask([PROMPT])
        assert answer["token_ids"] == [expected] and answer["cached_tokens"] == [88]


def test_a_restarted_engine_finds_its_prefix_on_the_device(folder, daemon, texts):
    expected = texts(PROMPT)
    for cached in (0, 88):
        with open_engine(folder, daemon=daemon.options.run_dir, settings=SETTINGS) as engine:
            (completion,) = engine.complete([PROMPT], params())
            assert list(completion.choices[0].token_ids) == expected
            assert completion.cached_tokens == cached
            assert engine.stats().pages_copied == 0


def test_a_daemon_that_is_killed_and_started_again_is_not_noticed_in_the_tokens(folder, daemon, texts):
    count = 150
    expected = texts(PROMPT, count)
    is_over = threading.Event()
    answers = []

    def ask():
        while not is_over.is_set():
            answers.extend(engine.complete([PROMPT], params(count)))

    with open_engine(folder, daemon=daemon.options.run_dir, settings=SETTINGS) as engine:
        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: engine.stats().requests_running, timeout_s=20, what="the engine to run")
        daemon.kill()
        wait_until(lambda: engine.stats().is_private, timeout_s=20, what="the engine to leave the pool")
        daemon.start()
        daemon.wait_ready()
        wait_until(lambda: not engine.stats().is_private, timeout_s=20, what="the engine to return")
        is_over.set()
        thread.join(60)
        assert engine.stats().counters["pool_moves"] == 2
        assert engine.complete([PROMPT], params())[0].cached_tokens == 88
    assert [list(tokens) for tokens in tokens_of(answers)] == [expected] * len(answers)


def test_a_preempted_sequence_comes_back_from_the_host_tier(folder, daemon, texts):
    prompts = [PROMPT, PROMPT[::-1], [9, *PROMPT]]
    count = 60
    with open_engine(folder, daemon=daemon.options.run_dir, settings=SETTINGS) as engine:
        completions = engine.complete(prompts, params(count))
        stats = engine.stats()
    assert [list(tokens) for tokens in tokens_of(completions)] == [texts(prompt, count) for prompt in prompts]
    assert stats.preemptions > 0
    assert stats.pages_copied > 0
    # Blocks of what gave way were brought back: the block at hand of each preemption was computed twice, and at most one sequence as a
    # whole, whose turn came when nobody else could free pages for what the host tier had of it.
    computed = sum(map(len, prompts)) + len(prompts) * (count - 1)
    assert stats.counters["computed_tokens"] <= computed + BLOCK_TOKENS * stats.preemptions + len(PROMPT) + count
