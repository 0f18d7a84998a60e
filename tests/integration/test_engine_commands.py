"""`tierkv engine` over the real engine: a small random model in a folder, the official client, the command line."""

import asyncio
import contextlib
import importlib.util
import json
import re
import signal
import subprocess
import sys

import openai
import pytest
import torch
import transformers
from typer.testing import CliRunner

from tests.unit.engine.small_tokenizers import BYTE_LEVEL
from tests.unit.engine.tiny_models import SMALL, random_model
from tierkv.cli.main import app
from tierkv.cli.output import run_command
from tierkv.config import Address
from tierkv.engine.engine import EngineSettings, open_engine
from tierkv.serving.server import EngineServer, ServedModel
from tierkv.testing.deadline import wait_until

TIMEOUT_S = 30.0
SETTINGS = EngineSettings(block_tokens=4, private_memory_bytes=1 << 20, max_batch_tokens=64, max_sequences=8)
PROMPT = "a prompt of some length, the beginning of everything"
TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}>"

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def hf_model():
    config = transformers.LlamaConfig(**{**SMALL, "vocab_size": 264, "eos_token_id": BYTE_LEVEL.eos_token_id})
    return random_model(config)


@pytest.fixture(scope="module")
def folder(hf_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    hf_model.save_pretrained(folder)
    BYTE_LEVEL.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture
def engine(folder):
    with contextlib.closing(open_engine(folder, settings=SETTINGS)) as engine:
        yield engine


@contextlib.asynccontextmanager
async def client_of(engine):
    server = EngineServer(engine, ServedModel("tiny", engine.loaded.tokenizer), address=Address("127.0.0.1", 0))
    address = await server.start()
    try:
        async with openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0) as client:
            yield client
    finally:
        await server.stop()


def by_transformers(hf_model, prompt, count):
    ids = torch.tensor([BYTE_LEVEL.encode(prompt)])
    output = hf_model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    return BYTE_LEVEL.decode(output[0, ids.shape[1] :], skip_special_tokens=True)


class TestServer:
    async def test_greedy_text_is_that_of_transformers_whole_and_streamed(self, engine, hf_model):
        expected = by_transformers(hf_model, PROMPT, 24)
        async with client_of(engine) as client:
            whole = await client.completions.create(model="tiny", prompt=PROMPT, max_tokens=24, temperature=0)
            stream = await client.completions.create(model="tiny", prompt=PROMPT, max_tokens=24, temperature=0, stream=True)
            pieces = [chunk.choices[0].text async for chunk in stream]
        assert whole.choices[0].text == expected
        assert "".join(pieces) == expected
        assert whole.usage.completion_tokens == 24

    async def test_a_prefix_that_came_before_is_told_as_cached(self, engine):
        async with client_of(engine) as client:
            first = await client.completions.create(model="tiny", prompt=PROMPT, max_tokens=2)
            again = await client.completions.create(model="tiny", prompt=PROMPT, max_tokens=2)
        cached = [reply.usage.prompt_tokens_details.cached_tokens for reply in (first, again)]
        assert cached == [0, SETTINGS.block_tokens * ((first.usage.prompt_tokens - 1) // SETTINGS.block_tokens)]

    async def test_a_seed_draws_the_same_text_in_any_company(self, engine):
        def ask(client, prompt, seed, **more):
            return client.completions.create(model="tiny", prompt=prompt, seed=seed, max_tokens=12, **more)

        async with client_of(engine) as client:
            alone = await ask(client, PROMPT, 7, n=2, logprobs=2)
            replies = await asyncio.gather(
                ask(client, PROMPT, 7, n=2, logprobs=2), *(ask(client, f"{seed} others", seed, temperature=2) for seed in range(4))
            )
        again = replies[0]
        assert [choice.text for choice in again.choices] == [choice.text for choice in alone.choices]
        assert alone.choices[0].text != alone.choices[1].text
        assert alone.choices[0].logprobs.tokens == again.choices[0].logprobs.tokens
        assert len(alone.choices[0].logprobs.token_logprobs) == 12

    async def test_a_stop_string_ends_the_text_before_it(self, engine, hf_model):
        text = by_transformers(hf_model, PROMPT, 24)
        stop = next(letter for letter in text[3:] if letter.isascii() and letter not in text[:3])
        async with client_of(engine) as client:
            reply = await client.completions.create(model="tiny", prompt=PROMPT, max_tokens=24, temperature=0, stop=stop)
        assert (reply.choices[0].text, reply.choices[0].finish_reason) == (text[: text.index(stop)], "stop")

    async def test_chat_goes_on_to_the_end_of_the_context(self, engine):
        messages = [{"role": "user", "content": "hello"}]
        async with client_of(engine) as client:
            reply = await client.chat.completions.create(
                model="tiny", messages=messages, temperature=0, extra_body={"ignore_eos": True}
            )
        usage = reply.usage
        assert reply.choices[0].finish_reason == "length"
        assert usage.total_tokens == SMALL["max_position_embeddings"]

    async def test_a_client_that_leaves_gives_its_pages_back(self, engine):
        async with client_of(engine) as client:
            stream = await client.completions.create(
                model="tiny", prompt=PROMPT, max_tokens=400, n=2, stream=True, extra_body={"ignore_eos": True}
            )
            async for _ in stream:
                break
            await stream.close()
            await asyncio.to_thread(
                wait_until,
                lambda: engine.stats().counters.get("finished_cancelled") == 1 and engine.stats().requests_running == 0,
                timeout_s=TIMEOUT_S,
                what="the cancelled sequences to end",
            )

    async def test_a_prompt_beyond_the_context_is_refused_before_the_stream_begins(self, engine):
        async with client_of(engine) as client:
            with pytest.raises(openai.BadRequestError) as refused:
                await client.completions.create(model="tiny", prompt=[5] * 512, stream=True)
        assert refused.value.param == "prompt"


class TestRun:
    def test_prints_the_text_as_it_comes_and_the_rest_on_standard_error(self, folder, hf_model):
        arguments = ["engine", "run", PROMPT, "--model", str(folder), "--max-tokens", "24", "--private-memory", "1MiB"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        assert result.stdout == by_transformers(hf_model, PROMPT, 24) + "\n"
        assert "24 generated (length)" in result.stderr

    def test_one_object_of_json(self, folder):
        arguments = [
            "engine",
            "run",
            "-",
            "--chat",
            "--model",
            str(folder),
            "--max-tokens",
            "5",
            "--private-memory",
            "1MiB",
            "--json",
        ]
        result = CliRunner().invoke(app, arguments, input="hello")
        fields = json.loads(result.stdout)
        assert fields["model"] == "tiny"
        assert fields["prompt_tokens"] == len(BYTE_LEVEL.encode("[user]hello>"))
        assert (fields["completion_tokens"], fields["finish_reason"], fields["cached_tier"]) == (5, "length", None)
        assert fields["ttft_ms"] > 0


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            (["serve", "{tmp}/nowhere"], "no model here"),
            (["serve", "{tmp}"], "no config.json"),
            (["serve", "--host", "192.0.2.1"], "API key"),
            (["serve", "{model}", "--device", "warp"], "device='warp'"),
            (["serve", "{model}", "--device", "cpu:7"], "no such device"),
            (["serve", "{model}", "--dtype", "int3"], "dtype='int3'"),
            (["serve", "{model}", "--private-memory", "1KiB"], "smaller than one page"),
            (["run", "x", "--model", "{model}", "--top-p", "2"], "top_p"),
            (["run", "x", "--private-memory", "much"], "size='much'"),
            (["run", "", "--model", "{model}"], "at least one token"),
        ],
    )
    def test_is_named_and_exits_with_2(self, arguments, named, folder, tmp_path, monkeypatch, capsys):
        filled = [argument.format(tmp=tmp_path, model=folder) for argument in arguments]
        monkeypatch.setattr(sys, "argv", ["tierkv", "engine", *filled])
        monkeypatch.setattr("tierkvd.telemetry.start_logging", lambda _: None)  # of a whole process
        assert run_command(app) == 2
        said = capsys.readouterr()
        assert named in said.err
        assert said.out == ""

    def test_missing_packages_are_named_with_the_command_that_installs_them(self, monkeypatch, capsys):
        found = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "torch" else found(name, *more))
        monkeypatch.setattr(sys, "argv", ["tierkv", "engine", "run", "hello"])
        assert run_command(app) == 2
        assert re.search(r"missing='torch', command='pip install .*tierkv\[transformers\]", capsys.readouterr().err)


@pytest.mark.slow
def test_a_served_model_answers_until_sigterm(folder):
    arguments = [sys.executable, "-m", "tierkv.cli.main", "engine", "serve", str(folder), "--port", "0", "--private-memory", "1MiB"]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            ready = next(event for event in map(json.loads, process.stderr) if event["event"] == "ready")
            with openai.OpenAI(base_url=ready["url"], api_key="none", max_retries=0) as client:
                assert [model.id for model in client.models.list()] == ["tiny"]
                assert client.completions.create(model="tiny", prompt="x", max_tokens=3).usage.completion_tokens == 3
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
            assert json.loads(process.stderr.read().splitlines()[-1])["event"] == "stopping"
        finally:
            process.kill()
