"""The engine from end to end on small random models: the tokens of transformers, whatever happens on the way."""

import asyncio
import functools
import itertools

import pytest
import torch

from tests.unit.engine.fake_daemon import FakeDaemon
from tests.unit.engine.tiny_models import CONFIGS, VOCABULARY, loaded, random_model
from tierkv.engine.engine import Engine, EngineSettings, FinishReason
from tierkv.engine.sampling import SamplingParams
from tierkv.engine.scheduler import Scheduler
from tierkv.engine.waiting import WaitingSequences
from tierkv.errors import CapacityError, ClosedError, InvalidRequestError
from tierkv.paging.supply import PageSupply
from tierkv.testing.deadline import wait_until

BLOCK_TOKENS = 4
NEW_TOKENS = 10
PARAMS = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
PROMPTS = [[(start * 7 + idx * 3) % VOCABULARY for idx in range(length)] for start, length in enumerate((1, 3, 4, 17, 40, 90))]


@functools.cache
def model_of(name):
    return random_model(CONFIGS[name]())


@functools.cache
def loaded_of(name):
    return loaded(model_of(name))


@functools.cache
def expected(name, prompt, count=NEW_TOKENS):
    """What transformers generates."""
    ids = torch.tensor([prompt])
    output = model_of(name).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, eos_token_id=None
    )
    return tuple(output[0, len(prompt) :].tolist())


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def engine_of(name="llama", *, num_pages=128, store=None, connect=None, **settings):
    model = loaded_of(name)
    options = {"block_tokens": BLOCK_TOKENS, "max_batch_tokens": 64, "max_sequences": 8, **settings}
    page_bytes = model.layout(options["block_tokens"]).block_bytes
    return Engine(
        model, settings=EngineSettings(private_memory_bytes=num_pages * page_bytes, **options), store=store, connect=connect
    )


def check(completions, prompts, name="llama"):
    for completion, prompt in zip(completions, prompts, strict=True):
        (choice,) = completion.choices
        assert choice.token_ids == expected(name, tuple(prompt)), len(prompt)
        assert choice.finish_reason is FinishReason.LENGTH
        assert completion.prompt_tokens == len(prompt)


@pytest.mark.parametrize("name", ["llama", "mistral, windows", "qwen2", "qwen3, heads wider than hidden"])
def test_the_tokens_are_those_of_transformers_alone_and_together(name):
    with engine_of(name, max_batch_tokens=24) as engine:
        for prompt in PROMPTS[2:4]:
            check(engine.complete([prompt], PARAMS), [prompt], name)
    with engine_of(name, max_batch_tokens=24) as engine:
        check(engine.complete(PROMPTS, PARAMS), PROMPTS, name)


@pytest.mark.parametrize(("num_pages", "is_said"), [(2, True), (128, False)])
def test_a_pool_smaller_than_the_context_is_said_at_the_start(num_pages, is_said, caplog):
    with engine_of(num_pages=num_pages):
        assert any("fewer than the model's context" in message for message in caplog.messages) == is_said


def test_a_prefix_that_is_held_is_not_computed_again():
    with engine_of() as engine:
        check(engine.complete(PROMPTS, PARAMS), PROMPTS)
        before = engine.stats().counters["computed_tokens"]
        again = engine.complete(PROMPTS, PARAMS)
        check(again, PROMPTS)
        assert [completion.cached_tokens for completion in again] == [0, 0, 0, 16, 36, 88]
        assert again[-1].cached_tier == "device" and again[0].cached_tier is None
        computed = engine.stats().counters["computed_tokens"] - before
        assert computed == sum(map(len, PROMPTS)) - 140 + len(PROMPTS) * (NEW_TOKENS - 1)


def test_preempted_sequences_give_the_same_tokens():
    with engine_of(num_pages=26, max_sequences=6) as engine:
        check(engine.complete(PROMPTS, PARAMS), PROMPTS)
        stats = engine.stats()
        assert stats.preemptions > 0
        assert (stats.pages_held, stats.pages_free, stats.pages_total) == (0, 26, 26)


def test_choices_are_drawn_from_one_prompt_and_a_seed_repeats_them():
    params = SamplingParams(max_tokens=8, temperature=1.0, seed=5, n=4, ignore_eos=True, logprobs=1)
    with engine_of() as engine:
        (first,), before = engine.complete([PROMPTS[3]], params), engine.stats().counters["computed_tokens"]
        assert before == len(PROMPTS[3]) + 4 * 7
        assert len({choice.token_ids for choice in first.choices}) == 4
        assert all(len(choice.logprobs) == 8 for choice in first.choices)
    with engine_of(num_pages=8, max_sequences=2) as engine:
        beside = engine.complete([PROMPTS[2], PROMPTS[3]], params)
        assert [choice.token_ids for choice in beside[1].choices] == [choice.token_ids for choice in first.choices]


def test_eos_ends_a_text_as_in_transformers():
    prompt = PROMPTS[3]
    text = expected("llama", tuple(prompt))
    with engine_of() as engine:
        (completion,) = engine.complete([prompt], SamplingParams(max_tokens=NEW_TOKENS, stop_token_ids=(text[4],)))
    assert completion.choices[0].token_ids == text[: text.index(text[4]) + 1]
    assert completion.choices[0].finish_reason is FinishReason.STOP


async def collect(stream):
    return [token async for token in stream]


async def test_tokens_stream_to_many_readers():
    with engine_of() as engine:
        streams = [engine.generate(prompt, PARAMS, tenant=str(len(prompt))) for prompt in PROMPTS]
        for tokens, prompt in zip(await asyncio.gather(*map(collect, streams)), PROMPTS, strict=True):
            assert tuple(token.token_id for token in tokens) == expected("llama", tuple(prompt))
            assert [token.finish_reason for token in tokens[:-1]] == [None] * (NEW_TOKENS - 1)
        stats = engine.stats()
        assert stats.counters["generated_tokens"] == len(PROMPTS) * NEW_TOKENS
        assert stats.ttft_ms is not None and stats.itl_ms is not None


async def test_closing_a_stream_gives_its_pages_back():
    with engine_of() as engine:
        stream = engine.generate(PROMPTS[3], SamplingParams(max_tokens=400, ignore_eos=True))
        await anext(stream)
        assert engine.stats().requests_running == 1
        await stream.aclose()
        wait_until(lambda: engine.stats().pages_held == 0, timeout_s=10, what="the pages to return")
        assert engine.stats().counters["finished_cancelled"] == 1
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_a_stream_that_is_let_go_is_cancelled():
    with engine_of() as engine:
        stream = engine.generate(PROMPTS[3], SamplingParams(max_tokens=400, ignore_eos=True))
        await anext(stream)
        del stream
        wait_until(lambda: engine.stats().pages_held == 0, timeout_s=10, what="the pages to return")


async def test_a_deadline_ends_a_stream():
    with engine_of() as engine:
        tokens = await collect(engine.generate(PROMPTS[3], SamplingParams(max_tokens=490, ignore_eos=True), deadline_s=0.05))
        assert tokens[-1].finish_reason is FinishReason.DEADLINE and tokens[-1].token_id == -1


async def test_closing_the_engine_ends_what_runs():
    engine = engine_of()
    engine.start()
    stream = engine.generate(PROMPTS[3], SamplingParams(max_tokens=490, ignore_eos=True))
    await anext(stream)
    engine.close()
    engine.close()
    tokens = await collect(stream)
    assert tokens[-1].finish_reason is FinishReason.CANCELLED
    with pytest.raises(ClosedError):
        engine.generate(PROMPTS[3], PARAMS)


def test_a_prompt_that_is_read_while_the_engine_closes_is_refused():
    engine = engine_of()
    engine.start()

    class Prompt(list[int]):
        def __iter__(self):
            engine.close()
            return super().__iter__()

    with pytest.raises(ClosedError):
        engine.complete([Prompt(PROMPTS[3])], PARAMS)


def test_an_engine_is_started_once():
    with engine_of() as engine:
        thread = engine._thread
        engine.start()
        assert engine._thread is thread
        check(engine.complete(PROMPTS[:2], PARAMS), PROMPTS[:2])
    with pytest.raises(ClosedError):
        engine.start()


def test_private_memory_below_a_page_is_refused():
    engine = Engine(loaded_of("llama"), settings=EngineSettings(private_memory_bytes=10))
    with pytest.raises(InvalidRequestError, match="smaller than one page"):
        engine.start()


@pytest.mark.parametrize(
    "settings",
    [{"block_tokens": 0}, {"max_batch_tokens": 4, "max_sequences": 8}, {"num_threads": 0}, {"retry_s": 0.0}, {"ageing_s": -1.0}],
)
def test_settings_that_cannot_be_are_refused_by_name(settings):
    with pytest.raises(InvalidRequestError, match=next(iter(settings))):
        EngineSettings(**settings)


@pytest.mark.parametrize(
    ("prompt", "options", "sentence"),
    [
        ([], {}, "at least one token"),
        ("text", {}, "no tokenizer"),
        ([1, VOCABULARY], {}, "not in the vocabulary"),
        ([-1], {}, "not in the vocabulary"),
        ([1] * 512, {}, "model's context"),
        ([1] * 400, {}, "pages_needed='100'"),
        ([1], {"deadline_s": 0.0}, "lies ahead"),
        ([1], {"request_id": "x" * 65}, "64 bytes"),
        ([1], {"tenant": "x" * 300}, "256 characters"),
    ],
)
async def test_what_cannot_be_is_refused_before_it_is_queued(prompt, options, sentence):
    with engine_of(num_pages=64) as engine:
        with pytest.raises(InvalidRequestError, match=sentence):
            engine.generate(prompt, PARAMS, **options)
        assert engine.stats().requests_waiting == 0


async def test_a_full_queue_refuses():
    with engine_of(max_waiting=2, max_sequences=1) as engine:
        running = engine.generate(PROMPTS[3], SamplingParams(max_tokens=490, ignore_eos=True))
        await anext(running)
        waiting = [engine.generate(PROMPTS[0], PARAMS) for _ in range(2)]
        with pytest.raises(CapacityError):
            engine.generate(PROMPTS[0], PARAMS)
        await running.aclose()
        for stream in waiting:
            assert len(await collect(stream)) == NEW_TOKENS


async def test_a_failing_step_ends_its_request_and_nothing_else(monkeypatch, caplog):
    with engine_of() as engine:
        forward = engine._model.forward

        def failing(spans):
            if any(127 in span.token_ids for span in spans):
                raise torch.OutOfMemoryError("no room")
            return forward(spans)

        monkeypatch.setattr(engine._model, "forward", failing)
        good, bad = engine.generate(PROMPTS[3], PARAMS), engine.generate([1, 127, 3], PARAMS)
        assert (await collect(bad))[-1].finish_reason is FinishReason.ERROR
        assert tuple(token.token_id for token in await collect(good)) == expected("llama", tuple(PROMPTS[3]))
        assert engine.stats().pages_held == 0


async def test_a_bug_in_a_step_ends_the_requests_at_hand_and_not_the_engine(monkeypatch, caplog):
    with engine_of() as engine:
        with monkeypatch.context() as broken:
            broken.setattr(engine._runner.scheduler, "plan", lambda _now_s: 1 / 0)
            tokens = await collect(engine.generate(PROMPTS[3], PARAMS))
        assert tokens[-1].finish_reason is FinishReason.ERROR
        assert "ZeroDivisionError" in caplog.text
        assert len(await collect(engine.generate(PROMPTS[3], PARAMS))) == NEW_TOKENS


async def test_a_daemon_that_goes_and_returns_is_not_noticed_in_the_tokens(caplog):
    layout = loaded_of("llama").layout(BLOCK_TOKENS)
    daemon = FakeDaemon(128 * layout.block_bytes)
    with engine_of(store=daemon, retry_s=0.01) as engine:
        count = 300
        stream = engine.generate(PROMPTS[4], SamplingParams(max_tokens=count, ignore_eos=True))
        tokens = [await anext(stream) for _ in range(20)]
        assert not engine.stats().is_private
        daemon.go()
        while not engine.stats().is_private:
            tokens.append(await anext(stream))
        daemon.restart()
        while engine.stats().is_private:
            tokens.append(await anext(stream))
        tokens += await collect(stream)
        assert tuple(token.token_id for token in tokens) == expected("llama", tuple(PROMPTS[4]), count)
        assert engine.stats().counters["computed_tokens"] == len(PROMPTS[4]) + count - 1
        assert engine.stats().counters["pool_moves"] == 2
        assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    assert daemon.inner.num_held == 0


def failing(verb, at, *, is_late):
    """`verb` but for its call number `at`, which raises before it does anything or afterwards."""
    calls = itertools.count(1)

    @functools.wraps(verb)
    def call(*args, **options):
        number = next(calls)
        if number == at and not is_late:
            raise RuntimeError("injected")
        result = verb(*args, **options)
        if number == at:
            raise RuntimeError("injected")
        return result

    return call


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("owner", "verb", "at"),
    [
        (Scheduler, "add", 3),
        (Scheduler, "finish", 2),
        (Scheduler, "plan", 2),
        (PageSupply, "release", 2),
        (PageSupply, "release", 9),
        (PageSupply, "commit", 3),
        (WaitingSequences, "leave", 2),
    ],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
def test_a_failure_anywhere_ends_requests_with_an_error_and_never_the_engine(owner, verb, at, is_late, monkeypatch, caplog):
    monkeypatch.setattr(owner, verb, failing(getattr(owner, verb), at, is_late=is_late))
    params = SamplingParams(max_tokens=4, n=2, temperature=1.0, seed=1, ignore_eos=True)
    with engine_of() as engine:
        for completion in engine.complete(PROMPTS, params):
            assert {choice.finish_reason for choice in completion.choices} <= {FinishReason.LENGTH, FinishReason.ERROR}
        assert "injected" in caplog.text
        check(engine.complete(PROMPTS[3:5], PARAMS), PROMPTS[3:5])
        assert not engine.stats().requests_running
