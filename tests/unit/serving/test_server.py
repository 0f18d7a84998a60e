"""The server as the official client sees it, over an engine that says what it was told to."""

import asyncio
import contextlib
import json
import threading
from typing import Any

import aiohttp
import openai
import pytest

from tests.unit.engine.small_tokenizers import BYTE_LEVEL
from tests.unit.serving.scripted_engine import ScriptedEngine, tokens_of
from tierkv.clock import SystemClock
from tierkv.config import Address
from tierkv.engine.sequence import FinishReason, Token
from tierkv.errors import CapacityError, InvalidRequestError, UnavailableError
from tierkv.serving import server as server_module
from tierkv.serving.generation import Generation
from tierkv.serving.metrics import ServerMetrics
from tierkv.serving.schema import parse_json
from tierkv.serving.server import EngineServer, ServedModel

TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% if m['content'] == 'bad' %}{{ raise_exception('no') }}{% endif %}{% endfor %}>"
HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def tokenizer():
    BYTE_LEVEL.chat_template = TEMPLATE
    yield BYTE_LEVEL
    BYTE_LEVEL.chat_template = None


@contextlib.asynccontextmanager
async def serving(engine, tokenizer, **options):
    server = EngineServer(engine, ServedModel("tiny", tokenizer), address=Address("127.0.0.1", 0), **options)
    address = await server.start()
    try:
        yield f"http://{address}"
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def client_of(engine, tokenizer, **options):
    async with (
        serving(engine, tokenizer, **options) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@contextlib.asynccontextmanager
async def http_of(engine, tokenizer, **options):
    async with serving(engine, tokenizer, **options) as url, aiohttp.ClientSession(base_url=url) as session:
        yield session


async def fetch(session, method, path, **options):
    """The reply, with its body read."""
    async with session.request(method, path, **options) as reply:
        await reply.read()
        return reply


class TestCompletions:
    async def test_text_finish_reason_and_usage(self, tokenizer):
        engine = ScriptedEngine(tokens_of("abc"))
        engine.cached_tokens = 2
        async with client_of(engine, tokenizer) as client:
            reply = await client.completions.create(model="tiny", prompt="say abc")
        (choice,) = reply.choices
        assert (choice.text, choice.finish_reason, choice.index, choice.logprobs) == ("abc", "stop", 0, None)
        assert (reply.object, reply.model) == ("text_completion", "tiny")
        usage = reply.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (7, 3, 10)
        assert usage.prompt_tokens_details.cached_tokens == 2
        assert reply.id == f"cmpl-{reply._request_id}"

    async def test_fields_reach_the_engine(self, tokenizer):
        engine = ScriptedEngine(tokens_of("a"))
        async with client_of(engine, tokenizer) as client:
            await client.completions.create(
                model="tiny",
                prompt=[1, 2, 3],
                max_tokens=9,
                temperature=0.5,
                top_p=0.9,
                stop=["x", "y"],
                seed=7,
                user="ann",
                frequency_penalty=0,
                extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "priority": 3, "deadline_s": 2.5},
                extra_headers={"X-Request-Id": "chat-17"},
            )
        (request,) = engine.requests
        params = request.params
        assert request.prompt == [1, 2, 3]
        assert (params.max_tokens, params.temperature, params.top_p, params.stop, params.seed) == (9, 0.5, 0.9, ("x", "y"), 7)
        assert (params.top_k, params.min_p, params.repetition_penalty, params.logprobs) == (5, 0.1, 1.2, None)
        assert (request.tenant, request.priority, request.request_id, engine.deadlines) == ("ann", 3, "chat-17", [2.5])

    async def test_defaults_are_those_of_the_api(self, tokenizer):
        engine = ScriptedEngine(tokens_of("a"))
        async with client_of(engine, tokenizer) as client:
            await client.completions.create(model="tiny", prompt="x")
        params = engine.requests[0].params
        assert (params.max_tokens, params.temperature, params.n, params.seed) == (16, 1.0, 1, None)

    async def test_choices_of_several_prompts_come_in_order(self, tokenizer):
        engine = ScriptedEngine([*tokens_of("b", 1), *tokens_of("a", 0)], [*tokens_of("c", 0), *tokens_of("d", 1)])
        async with client_of(engine, tokenizer) as client:
            reply = await client.completions.create(model="tiny", prompt=["one", "seven"], n=2)
        assert [(choice.index, choice.text) for choice in reply.choices] == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (8, 4)
        assert len({request.request_id for request in engine.requests}) == 2

    async def test_log_probabilities(self, tokenizer):
        async with client_of(ScriptedEngine(tokens_of("ab", logprobs=2)), tokenizer) as client:
            reply = await client.completions.create(model="tiny", prompt="x", logprobs=2)
        logprobs = reply.choices[0].logprobs
        assert logprobs.tokens == ["a", "b"]
        assert logprobs.token_logprobs == [-0.5, -1.5]
        assert logprobs.top_logprobs == [{"a": -0.5, "b": -1.5}, {"b": -1.5, "c": -2.5}]
        assert logprobs.text_offset == [0, 1]

    async def test_a_stream(self, tokenizer):
        async with client_of(ScriptedEngine(tokens_of("abc", finish_reason=FinishReason.LENGTH)), tokenizer) as client:
            chunks = [chunk async for chunk in await client.completions.create(model="tiny", prompt="x", stream=True)]
        assert [chunk.choices[0].text for chunk in chunks] == ["a", "b", "c"]
        assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "length"]
        assert len({chunk.id for chunk in chunks}) == 1

    async def test_offsets_go_on_in_a_stream(self, tokenizer):
        async with client_of(ScriptedEngine(tokens_of("abc", logprobs=0)), tokenizer) as client:
            stream = await client.completions.create(model="tiny", prompt="x", stream=True, logprobs=0)
            offsets = [chunk.choices[0].logprobs.text_offset async for chunk in stream]
        assert offsets == [[0], [1], [2]]

    async def test_several_prompts_in_a_stream(self, tokenizer):
        engine = ScriptedEngine(tokens_of("ab"), tokens_of("xyz"))
        async with client_of(engine, tokenizer) as client:
            stream = await client.completions.create(
                model="tiny", prompt=["1", "2"], stream=True, stream_options={"include_usage": True}
            )
            *chunks, last = [chunk async for chunk in stream]
        texts = {index: "".join(c.choices[0].text for c in chunks if c.choices[0].index == index) for index in (0, 1)}
        assert texts == {0: "ab", 1: "xyz"}
        assert (last.choices, last.usage.completion_tokens) == ([], 5)


class TestChat:
    async def test_the_template_makes_the_prompt(self, tokenizer):
        engine = ScriptedEngine(tokens_of("hi"))
        messages: Any = [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]},
        ]
        async with client_of(engine, tokenizer) as client:
            reply = await client.chat.completions.create(model="tiny", messages=messages, max_completion_tokens=5)
        assert BYTE_LEVEL.decode(engine.requests[0].prompt) == "[system]be brief[user]hello>"
        assert engine.requests[0].params.max_tokens == 5
        message = reply.choices[0].message
        assert (message.role, message.content, reply.object) == ("assistant", "hi", "chat.completion")

    async def test_n_choices_and_log_probabilities(self, tokenizer):
        thumb = "👍"
        engine = ScriptedEngine([*tokens_of("a", 0, logprobs=1), *tokens_of(thumb, 1, logprobs=1)])
        async with client_of(engine, tokenizer) as client:
            reply = await client.chat.completions.create(model="tiny", messages=HELLO, n=2, logprobs=True, top_logprobs=1)
        first, second = reply.choices
        assert [(entry.token, entry.logprob, entry.bytes) for entry in first.logprobs.content] == [("a", -0.5, [97])]
        assert first.logprobs.content[0].top_logprobs[0].token == "a"
        entries = second.logprobs.content
        assert b"".join(bytes(entry.bytes) for entry in entries) == thumb.encode()
        assert entries[0].token == r"bytes:\xf0\x9f"

    async def test_a_stream_with_usage(self, tokenizer):
        engine = ScriptedEngine([Token(0, 5, ""), *tokens_of("ab")])
        engine.cached_tokens = 4
        async with client_of(engine, tokenizer) as client:
            stream = await client.chat.completions.create(
                model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}
            )
            opening, *pieces, last = [chunk async for chunk in stream]
        assert (opening.choices[0].delta.role, opening.choices[0].delta.content) == ("assistant", "")
        assert [piece.choices[0].delta.content for piece in pieces] == ["a", "b"]
        assert [piece.choices[0].finish_reason for piece in pieces] == [None, "stop"]
        assert all(piece.usage is None and "usage" in piece.model_fields_set for piece in pieces)
        assert last.choices == []
        assert (last.usage.completion_tokens, last.usage.prompt_tokens_details.cached_tokens) == (3, 4)

    async def test_log_probabilities_in_a_stream(self, tokenizer):
        async with client_of(ScriptedEngine(tokens_of("ab", logprobs=1)), tokenizer) as client:
            stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True, logprobs=True)
            opening, *pieces = [chunk async for chunk in stream]
        assert opening.choices[0].logprobs is None
        assert [[entry.logprob for entry in piece.choices[0].logprobs.content] for piece in pieces] == [[-0.5], [-1.5]]

    async def test_the_end_may_come_without_text(self, tokenizer):
        engine = ScriptedEngine([*tokens_of("a", finish_reason=None), Token(0, -1, "", finish_reason=FinishReason.DEADLINE)])
        async with client_of(engine, tokenizer) as client:
            stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
            chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "deadline"
        assert chunks[-1].choices[0].delta.content is None

    async def test_a_synchronous_client(self, tokenizer):
        engine = ScriptedEngine(tokens_of("ab"), tokens_of("cd"))

        def talk(url):
            with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                whole = client.chat.completions.create(model="tiny", messages=HELLO)
                stream = client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
                return whole.choices[0].message.content, [chunk.choices[0].delta.content for chunk in stream]

        async with serving(engine, tokenizer) as url:
            assert await asyncio.to_thread(talk, url) == ("ab", ["", "c", "d"])

    async def test_unbounded_answers_are_asked_for_where_no_length_is_given(self, tokenizer):
        engine = ScriptedEngine(tokens_of("a"))
        async with client_of(engine, tokenizer) as client:
            await client.chat.completions.create(model="tiny", messages=HELLO)
        assert engine.requests[0].params.max_tokens > 1_000_000


class TestErrors:
    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"temperature": -1}, "temperature"),
            ({"top_p": "high"}, "top_p"),
            ({"n": 0}, "n"),
            ({"n": 2, "prompt": ["x"] * 65}, "n"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"logprobs": 21}, "logprobs"),
            ({"stop": ["x"] * 17}, "stop"),
            ({"stop": 7}, "stop"),
            ({"seed": 1.5}, "seed"),
            ({"prompt": []}, "prompt"),
            ({"prompt": None}, "prompt"),
            ({"prompt": [[1], "a", 3]}, "prompt"),
            ({"prompt": [-1]}, "prompt"),
            ({"stream": "yes"}, "stream"),
            ({"stream_options": {"include_usage": True}}, "stream_options"),
            ({"presence_penalty": 0.5}, "presence_penalty"),
            ({"echo": True}, "echo"),
            ({"best_of": 3}, "best_of"),
            ({"temprature": 1}, "temprature"),
            ({"user": "x" * 257}, "user"),
            ({"priority": 1000}, "priority"),
            ({"deadline_s": 0}, "deadline_s"),
        ],
        ids=str,
    )
    async def test_a_wrong_field_is_named(self, fields, param, tokenizer):
        engine = ScriptedEngine()
        async with http_of(engine, tokenizer) as session:
            reply = await fetch(session, "POST", "/v1/completions", json={"model": "tiny", "prompt": "x", **fields})
            error = (await reply.json())["error"]
        assert (reply.status, error["type"], error["param"]) == (400, "invalid_request_error", param)
        assert engine.requests == []

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
            ({"messages": [{"role": "user"}]}, "messages[0].content"),
            ({"messages": [*HELLO, {"role": "user", "content": [{"type": "image_url"}]}]}, "messages[1].content"),
            ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
            ({"messages": [{"role": "user", "content": "bad"}]}, "messages"),
            ({"tools": [{"type": "function"}]}, "tools"),
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"top_logprobs": 2}, "top_logprobs"),
            ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
            ({"logprobs": 2}, "logprobs"),
            ({"prompt": "x"}, "prompt"),
        ],
        ids=str,
    )
    async def test_a_wrong_field_of_chat_is_named(self, fields, param, tokenizer):
        async with http_of(ScriptedEngine(), tokenizer) as session:
            reply = await fetch(session, "POST", "/v1/chat/completions", json={"messages": HELLO, **fields})
            error = (await reply.json())["error"]
        assert (reply.status, error["param"]) == (400, param)

    async def test_a_refusal_does_not_tell_the_client_what_it_sent(self, tokenizer):
        async with http_of(ScriptedEngine(), tokenizer) as session:
            reply = await fetch(session, "POST", "/v1/completions", json={"prompt": "x", "suffix": "very long"})
            assert (await reply.json())["error"]["message"] == "suffix: this server does not support it"

    async def test_a_prompt_beyond_the_context_has_the_code_that_clients_look_for(self, tokenizer):
        refusal = InvalidRequestError("no room", field="prompt", tokens=90, context=80)
        async with client_of(ScriptedEngine(refusal), tokenizer) as client:
            with pytest.raises(openai.BadRequestError, match="tokens='90', context='80'") as caught:
                await client.chat.completions.create(model="tiny", messages=HELLO)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")

    async def test_a_wrong_path_is_told_the_right_ones(self, tokenizer):
        async with http_of(ScriptedEngine(), tokenizer) as session:
            reply = await fetch(session, "POST", "/chat/completions", json={})
            assert reply.status == 404
            assert "/v1/chat/completions" in (await reply.json())["error"]["message"]

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b'{"temperature": NaN}',
            b"[" * 100_000,
            b"\xff\xff\xff",
            b'{"prompt": "\\ud800"}',
            b'{"prompt": "\xed\xa0\x80"}',
            '{"prompt": "\\ud800"}'.encode("utf-16"),
        ],
    )
    async def test_a_body_that_is_no_json_object_is_refused(self, body, tokenizer):
        async with http_of(ScriptedEngine(), tokenizer) as session:
            reply = await fetch(session, "POST", "/v1/completions", data=body, headers={"Content-Type": "application/json"})
            assert reply.status == 400
            assert (await reply.json())["error"]["type"] == "invalid_request_error"

    @pytest.mark.parametrize("field", [b"prompt", b"what", b"store"])
    @pytest.mark.parametrize("depth", [64, 500, 900])
    async def test_a_body_that_nests_deeply_is_refused_before_anybody_shows_it(self, depth, field, tokenizer):
        body = b'{"%b": %b}' % (field, b"[" * depth + b"]" * depth)
        async with http_of(ScriptedEngine(), tokenizer) as session:
            reply = await fetch(session, "POST", "/v1/completions", data=body, headers={"Content-Type": "application/json"})
            error = (await reply.json())["error"]
        assert (reply.status, "nests too deeply" in error["message"]) == (400, True)

    async def test_a_body_that_is_not_compressed_as_it_says_is_refused(self, tokenizer):
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        async with http_of(ScriptedEngine(), tokenizer) as session:
            reply = await fetch(session, "POST", "/v1/completions", data=b"plain", headers=headers)
        assert reply.status == 400

    async def test_a_body_of_some_megabytes_is_parsed_beside_the_event_loop(self, tokenizer, monkeypatch):
        threads = set()

        def parse(body):
            threads.add(threading.current_thread())
            return parse_json(body)

        monkeypatch.setattr(server_module, "parse_json", parse)
        async with http_of(ScriptedEngine(tokens_of("a"), tokens_of("a")), tokenizer) as session:
            for path, fields in (("completions", {"prompt": [1] * 1000}), ("chat/completions", {"messages": HELLO})):
                assert (await fetch(session, "POST", f"/v1/{path}", json=fields)).status == 200
        assert threads and threading.main_thread() not in threads

    async def test_a_model_without_a_template_has_no_chat(self, tokenizer, monkeypatch):
        monkeypatch.setattr(tokenizer, "chat_template", None)
        async with client_of(ScriptedEngine(), tokenizer) as client:
            with pytest.raises(openai.BadRequestError, match="no chat template"):
                await client.chat.completions.create(model="tiny", messages=HELLO)

    async def test_another_model_is_not_found(self, tokenizer):
        async with client_of(ScriptedEngine(), tokenizer) as client:
            with pytest.raises(openai.NotFoundError) as refused:
                await client.completions.create(model="huge", prompt="x")
        assert (refused.value.code, refused.value.param) == ("model_not_found", "model")

    async def test_what_the_engine_refuses_keeps_its_field(self, tokenizer):
        engine = ScriptedEngine(InvalidRequestError("the prompt leaves no room", field="prompt"))
        async with client_of(engine, tokenizer) as client:
            with pytest.raises(openai.BadRequestError, match="no room") as refused:
                await client.completions.create(model="tiny", prompt="x", stream=True)
        assert refused.value.param == "prompt"

    async def test_a_full_queue_is_a_503_that_says_when(self, tokenizer):
        engine = ScriptedEngine(tokens_of("a", finish_reason=None), CapacityError("too many requests wait"))
        async with client_of(engine, tokenizer) as client:
            with pytest.raises(openai.InternalServerError) as refused:
                await client.completions.create(model="tiny", prompt=["x", "y"])
        assert (refused.value.status_code, refused.value.response.headers["Retry-After"]) == (503, "1")
        assert engine.num_cancelled == 1  # the first prompt does not go on alone

    @pytest.mark.parametrize(("reason", "status"), [(FinishReason.ERROR, 500), (FinishReason.CANCELLED, 503)])
    async def test_an_engine_that_fails_or_stops(self, reason, status, tokenizer):
        engine = ScriptedEngine(*[[*tokens_of("a", finish_reason=None), Token(0, -1, "", finish_reason=reason)]] * 2)
        async with client_of(engine, tokenizer) as client:
            with pytest.raises(openai.InternalServerError) as failed:
                await client.completions.create(model="tiny", prompt="x")
            assert failed.value.status_code == status
            stream = await client.completions.create(model="tiny", prompt="x", stream=True)
            assert (await anext(stream)).choices[0].text == "a"
            with pytest.raises(openai.APIError, match="engine"):
                await anext(stream)

    async def test_a_bug_is_a_500_without_its_text(self, tokenizer, caplog):
        async with client_of(ScriptedEngine(RuntimeError("secret detail")), tokenizer) as client:
            with pytest.raises(openai.InternalServerError) as failed:
                await client.completions.create(model="tiny", prompt="x")
        assert "secret" not in str(failed.value)
        assert "secret detail" in caplog.text

    async def test_a_body_has_a_bound(self, tokenizer, monkeypatch):
        monkeypatch.setattr(server_module, "MAX_BODY_BYTES", 1000)
        async with http_of(ScriptedEngine(), tokenizer) as session:
            reply = await fetch(session, "POST", "/v1/completions", json={"prompt": "x" * 2000})
            assert (reply.status, (await reply.json())["error"]["type"]) == (413, "invalid_request_error")

    async def test_a_form_that_any_web_page_can_send_is_refused(self, tokenizer):
        async with http_of(ScriptedEngine(), tokenizer) as session:
            reply = await fetch(session, "POST", "/v1/completions", data=b'{"prompt": "x"}', headers={"Content-Type": "text/plain"})
            assert reply.status == 415

    @pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)])
    async def test_paths_that_are_not_there_have_the_form_of_the_api(self, method, path, status, tokenizer):
        async with http_of(ScriptedEngine(), tokenizer) as session:
            reply = await fetch(session, method, path)
            assert (reply.status, (await reply.json())["error"]["type"]) == (status, "invalid_request_error")

    async def test_a_key_is_asked_for_where_there_is_one(self, tokenizer):
        engine = ScriptedEngine(tokens_of("a"))
        async with serving(engine, tokenizer, api_key="geheim") as url:
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client:
                with pytest.raises(openai.AuthenticationError):
                    await client.models.list()
                assert (await client.with_options(api_key="geheim").completions.create(model="tiny", prompt="x")).choices
            async with aiohttp.ClientSession() as session:
                assert (await fetch(session, "GET", f"{url}/healthz")).status == 200


class TestGoingAway:
    async def test_a_client_that_leaves_a_stream_cancels_its_requests(self, tokenizer):
        engine = ScriptedEngine(tokens_of("ab", finish_reason=None), tokens_of("cd", finish_reason=None))
        async with client_of(engine, tokenizer) as client:
            stream = await client.completions.create(model="tiny", prompt=["x", "y"], stream=True)
            async for _ in stream:
                break
            await stream.close()
            async with asyncio.timeout(5):
                while engine.num_cancelled < 2:
                    await engine.was_cancelled.wait()
                    engine.was_cancelled.clear()

    async def test_a_client_that_does_not_wait_for_the_whole_reply_cancels_too(self, tokenizer):
        engine = ScriptedEngine(tokens_of("ab", finish_reason=None))
        async with http_of(engine, tokenizer) as session:
            waiting = asyncio.create_task(fetch(session, "POST", "/v1/completions", json={"prompt": "x"}))
            async with asyncio.timeout(5):
                await engine.was_asked.wait()
                waiting.cancel()
                await engine.was_cancelled.wait()
            metrics = await (await fetch(session, "GET", "/metrics")).text()
        assert 'tierkv_engine_http_requests_total{path="/v1/completions",status="499"} 1.0' in metrics

    async def test_stopping_cuts_off_what_does_not_end_and_says_so(self, tokenizer, monkeypatch):
        monkeypatch.setattr(server_module, "GRACE_S", 0.05)
        engine = ScriptedEngine(*[tokens_of("ab", finish_reason=None)] * 2)
        server = EngineServer(engine, ServedModel("tiny", tokenizer), address=Address("127.0.0.1", 0))
        async with openai.AsyncOpenAI(base_url=f"http://{await server.start()}/v1", api_key="none", max_retries=0) as client:
            stream = await client.completions.create(model="tiny", prompt="x", stream=True)
            assert [(await anext(stream)).choices[0].text for _ in range(2)] == ["a", "b"]
            whole = asyncio.create_task(client.completions.create(model="tiny", prompt="x"))
            async with asyncio.timeout(5):
                while len(engine.requests) < 2:
                    engine.was_asked.clear()
                    await engine.was_asked.wait()
            await server.stop()
            with pytest.raises(openai.APIError, match="stopping"):
                await anext(stream)
            with pytest.raises(openai.InternalServerError, match="stopping"):
                await whole
        await server.stop()
        assert engine.num_cancelled == 2

    async def test_a_reply_that_is_cut_off_between_two_tokens_is_not_taken_for_complete(self):
        engine = ScriptedEngine(tokens_of("ab", finish_reason=None))
        generation = Generation(1, SystemClock(), ServerMetrics(engine.stats))
        generation.add(engine.generate([1]))
        async with contextlib.aclosing(generation.tokens()) as tokens:
            await anext(tokens)
            await generation.cut_off()
            with pytest.raises(UnavailableError, match="stopping"):
                [token async for token in tokens]

    async def test_stopping_lets_a_reply_end(self, tokenizer):
        engine = ScriptedEngine(tokens_of("ab", finish_reason=None))
        server = EngineServer(engine, ServedModel("tiny", tokenizer), address=Address("127.0.0.1", 0))
        async with openai.AsyncOpenAI(base_url=f"http://{await server.start()}/v1", api_key="none", max_retries=0) as client:
            stream = await client.completions.create(model="tiny", prompt="x", stream=True)
            assert (await anext(stream)).choices[0].text == "a"
            stopping = asyncio.create_task(server.stop())
            # A connection that is still open asks for more.
            with pytest.raises(openai.APIError):
                await client.completions.create(model="tiny", prompt="x")
            engine.go_on(tokens_of("c"))
            assert [chunk.choices[0].text async for chunk in stream] == ["b", "c"]
            await stopping
        assert engine.num_cancelled == 0


class TestRest:
    async def test_models(self, tokenizer):
        async with client_of(ScriptedEngine(), tokenizer) as client:
            assert [model.id async for model in await client.models.list()] == ["tiny"]
            assert (await client.models.retrieve("tiny")).owned_by == "tierkv"
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve("meta/huge")

    async def test_health_and_metrics(self, tokenizer):
        engine = ScriptedEngine(tokens_of("abc"))
        engine.cached_tokens = 2
        async with http_of(engine, tokenizer) as session:
            assert await (await fetch(session, "GET", "/healthz")).text() == "ok\n"
            await fetch(session, "POST", "/v1/completions", json={"prompt": "hello"})
            await fetch(session, "GET", "/v1/no/such/path")
            lines = (await (await fetch(session, "GET", "/metrics")).text()).splitlines()
        for line in (
            'tierkv_engine_http_requests_total{path="/v1/completions",status="200"} 1.0',
            'tierkv_engine_http_requests_total{path="other",status="404"} 1.0',
            'tierkv_engine_tokens_total{kind="prompt"} 5.0',
            'tierkv_engine_tokens_total{kind="cached"} 2.0',
            'tierkv_engine_tokens_total{kind="completion"} 3.0',
            "tierkv_engine_time_to_first_token_seconds_count 1.0",
            "tierkv_engine_time_between_tokens_seconds_count 2.0",
            'tierkv_engine_sequences{state="waiting"} 3.0',
            'tierkv_engine_pages{kind="held"} 40.0',
            'tierkv_engine_hit_tokens_total{tier="host"} 64.0',
            'tierkv_engine_events_total{event="steps"} 9.0',
            "tierkv_engine_is_private 0.0",
        ):
            assert line in lines

    async def test_a_taken_port_is_said(self, tokenizer):
        async with serving(ScriptedEngine(), tokenizer) as url:
            port = int(url.rpartition(":")[2])
            second = EngineServer(ScriptedEngine(), ServedModel("tiny", tokenizer), address=Address("127.0.0.1", port))
            with pytest.raises(UnavailableError, match="--port"):
                await second.start()

    def test_a_model_without_a_tokenizer_is_refused(self):
        with pytest.raises(InvalidRequestError, match="tokenizer"):
            EngineServer(ScriptedEngine(), ServedModel("tiny", None), address=Address("127.0.0.1", 0))

    async def test_the_frames_of_a_stream(self, tokenizer):
        async with http_of(ScriptedEngine(tokens_of("é")), tokenizer) as session:
            reply = await fetch(
                session, "POST", "/v1/completions", json={"prompt": "x", "stream": True}, headers={"X-Request-Id": "mine"}
            )
            frames = (await reply.text()).split("\n\n")
        assert reply.content_type == "text/event-stream"
        assert reply.headers["X-Request-Id"] == "mine"
        assert frames[-2:] == ["data: [DONE]", ""]
        assert json.loads(frames[0].removeprefix("data: "))["id"] == "cmpl-mine"
