"""The engine's benchmark against an engine whose times are known: it measures what it says, and refuses what is no measurement."""

from __future__ import annotations

import asyncio
import csv
import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from tierkv.cli import bench as command
from tierkv.errors import InternalError, InvalidRequestError
from tierkv.testing.clock import ManualClock
from tierkv_bench import engine_report
from tierkv_bench.engine import EngineOptions, engine_command, measure
from tierkv_bench.engine_cases import SETTLE_TOKENS, Bench
from tierkv_bench.engine_load import Prompts, Timeline, decode_tok_s, prefill_tok_s
from tierkv_bench.engine_parity import parity

BLOCK = 4
PREFILL_S = 0.01
"""Of a token that has to be computed."""
DECODE_S = 0.1
CALL_S = 0.02


@dataclass
class FakeEngine:
    """Computes one request at a time, in time that depends on nothing but its prompt; keeps full blocks for ever."""

    clock: ManualClock
    speed: float = 1.0
    tier: str = "device"
    lost_tokens: int = 0
    wrong_after: int | None = None
    blocks: set[tuple[int, ...]] = field(default_factory=set)
    hit_tokens: dict[str, int] = field(default_factory=dict)
    pages_copied: int = 0
    pages_held: int = 0
    preemptions: int = 0

    async def generate(self, prompt, params, *, priority=0):
        prompt = tuple(prompt)
        ends = range(BLOCK, len(prompt), BLOCK)
        cached = next((end - BLOCK for end in ends if prompt[:end] not in self.blocks), max(ends, default=0))
        self.hit_tokens[self.tier] = self.hit_tokens.get(self.tier, 0) + cached
        self.pages_copied += cached // BLOCK if self.tier != "device" else 0
        self.pages_held = -(-len(prompt) // BLOCK)
        self.clock.advance((CALL_S + PREFILL_S * (len(prompt) - cached)) / self.speed)
        self.blocks.update(prompt[:end] for end in range(BLOCK, len(prompt) + 1, BLOCK))
        for idx in range(params.max_tokens - self.lost_tokens):
            if idx:
                self.clock.advance(DECODE_S / self.speed)
            yield SimpleNamespace(token_id=answer_token(prompt, idx) + (idx == self.wrong_after), finish_reason=None)

    def stats(self):
        return self

    def answer(self, prompt, new_tokens):
        """As a reference: without a cache."""
        started_s = self.clock.monotonic_s()
        self.clock.advance((CALL_S + PREFILL_S * len(prompt)) / self.speed)
        times_s = []
        for idx in range(new_tokens):
            if idx:
                self.clock.advance(DECODE_S / self.speed)
            times_s.append(self.clock.monotonic_s())
        tokens = tuple(answer_token(tuple(prompt), idx) for idx in range(new_tokens))
        return Timeline(len(prompt), started_s, tuple(times_s), tokens)


class Holding(FakeEngine):
    """A reference that computes what follows what it holds."""

    def hold(self, prompt):
        self.held = tuple(prompt)

    def continue_held(self, suffix):
        assert len(self.held) == 40
        return CALL_S + PREFILL_S * len(suffix)


def answer_token(prompt, idx):
    return (sum(prompt) + idx) % 97


def make(**traits):
    clock = ManualClock()
    engine = FakeEngine(clock, **traits)
    return Bench(engine, Prompts(range(10, 60), 100), clock), engine


def test_numbered_prompts_are_the_same_everywhere_and_share_no_block():
    one, other = Prompts(range(10, 60), 100), Prompts(range(10, 60), 100, first=7)
    assert one.numbered(7, 80) == other.fresh(80)
    assert one.numbered(3, 5) != one.numbered(103, 5)
    assert one.numbered(3, 5)[4:] == [10]
    assert len(one.numbered(3, 2)) == 2
    assert one.plain(48, 4) == [58, 59, 10, 11]


async def test_an_engine_of_half_the_speed_has_half_the_ratios():
    bench, engine = make(speed=0.5)
    reference = Holding(engine.clock)
    result = await bench.compare(reference, prompt_len=98, new_tokens=5, rounds=3)
    assert result["prefill"] == pytest.approx(0.5)
    assert result["decode"] == pytest.approx(0.5)
    theirs = result["transformers"]
    assert (theirs["prompt_len"], theirs["prefill_tok_s"], theirs["decode_tok_s"], theirs["ttft_ms_p50"]) == (
        98,
        98.0,
        10.0,
        1000.0,
    )
    run = result["run"]
    assert (run["ttft_ms_p50"], run["itl_ms_p50"], run["prefix_tier"], run["device_hit"]) == (2000.0, 200.0, None, 0.0)


async def test_a_load_is_cold_and_then_warm():
    bench, _ = make()
    runs = await bench.load(batch=2, prompt_len=41, new_tokens=3, rounds=2)
    cold, warm = runs["cold"], runs["warm"]
    promised = {
        "batch", "prompt_len", "new_tokens", "prefill_tok_s", "decode_tok_s", "prefix_tier", "pages_copied", "peak_pages",
        *(f"{name}_ms_p{percent}" for name in ("ttft", "itl") for percent in (50, 95, 99)),
    }  # fmt: skip
    assert promised <= cold.keys()
    assert (cold["batch"], cold["prompt_len"], cold["new_tokens"], cold["rounds"]) == (2, 41, 3, 2)
    assert (cold["prefix_tier"], warm["prefix_tier"]) == (None, "device")
    assert (warm["device_hit"], warm["host_hit"], warm["pages_copied"]) == (round(40 / 41, 4), 0.0, 0)
    assert cold["ttft_ms_p50"] > warm["ttft_ms_p50"]
    assert cold["peak_pages"] == 11


async def test_a_prefix_costs_what_its_suffix_costs():
    bench, engine = make()
    filled = await bench.fill(numbers=[0, 1], prompt_len=40)
    assert filled["ttft_ms"] == pytest.approx([420.0, 420.0])
    engine.clock.advance(1.0)
    fresh = Bench(engine, Prompts(range(10, 60), 100, first=50), engine.clock)
    result = await fresh.prefix(numbers=[0, 1], prefix_len=40, suffix_len=8)
    assert result["ratio"] == pytest.approx(1.0)
    assert result["suffix_ttft_ms"] == 100.0
    assert (result["run"]["prefix_tier"], result["run"]["pages_copied"], result["run"]["prompt_len"]) == ("device", 0, 48)


async def test_a_prefix_is_held_against_a_reference_that_never_let_go_of_it():
    bench, engine = make(speed=0.5)
    await bench.fill(numbers=[0], prompt_len=40)
    fresh = Bench(engine, Prompts(range(10, 60), 100, first=50), engine.clock)
    result = await fresh.prefix(numbers=[0, 0], prefix_len=40, suffix_len=8, reference=Holding(engine.clock))
    assert result["held_ratio"] == pytest.approx(2.0)


async def test_a_prefix_that_is_copied_says_so():
    bench, _ = make(tier="disk")
    await bench.fill(numbers=[0], prompt_len=40)
    run = (await Bench(bench.engine, Prompts(range(10, 60), 100, first=50), bench.clock).prefix(
        numbers=[0], prefix_len=40, suffix_len=8
    ))["run"]  # fmt: skip
    assert (run["prefix_tier"], run["pages_copied"], run["disk_hit"]) == ("disk", 10, round(40 / 48, 4))
    assert (run["decode_tok_s"], run["itl_ms_p50"]) == (None, None), "one token has no time between tokens"


async def test_an_engine_without_batching_gains_nothing_from_streams():
    bench, _ = make()
    assert (await bench.streams(batch=3, prompt_len=12, new_tokens=4, rounds=1))["streams"] == pytest.approx(1.0)


async def test_a_sequence_that_was_not_preempted_is_no_measurement():
    bench, _ = make()
    with pytest.raises(InternalError, match="took no pages"):
        await bench.preempt(prompt_len=40, new_tokens=40, rounds=1)


class Preempting(FakeEngine):
    """A request with priority stops the one that runs; that one goes on a quarter of a second after its end."""

    is_over: asyncio.Event

    async def generate(self, prompt, params, *, priority=0):
        if priority:
            self.preemptions += 1
            async for token in super().generate(prompt, params):
                yield token
            self.is_over.set()
            return
        self.is_over = asyncio.Event()
        num_tokens = 0
        async for token in super().generate(prompt, params):
            num_tokens += 1
            if num_tokens == SETTLE_TOKENS + 2:
                await self.is_over.wait()
                self.clock.advance(0.25 - DECODE_S)
            yield token
            await asyncio.sleep(0)


async def test_resuming_is_timed_from_the_urgent_answer_s_end_and_held_against_its_prefill():
    clock = ManualClock()
    bench = Bench(Preempting(clock), Prompts(range(10, 60), 100), clock)
    result = await bench.preempt(prompt_len=98, new_tokens=20, rounds=2)
    # The clock had moved on by one token of the patient request when it was stopped.
    assert result["resume_ms"] == pytest.approx(150.0)
    assert result["ratio"] == pytest.approx(1.0 / 0.15)
    assert result["preemptions"] == 2


async def test_an_answer_that_is_not_whole_is_no_measurement():
    bench, _ = make(lost_tokens=1)
    with pytest.raises(InternalError, match="not whole"):
        await bench.load(batch=1, prompt_len=8, new_tokens=4, rounds=1)


async def test_answers_are_compared_token_for_token():
    clock = ManualClock()
    reference, right, wrong = Holding(clock), FakeEngine(clock), FakeEngine(clock, wrong_after=2)
    prompts = Prompts(range(10, 60), 100)
    same = await parity([right, right], reference, prompts, clock, lengths=[1, 5, 17], new_tokens=4)
    assert (same["prompts"], same["identical"], same["different"]) == (3, 3, [])
    other = await parity([right, wrong], reference, prompts, clock, lengths=[1, 5, 17], new_tokens=4)
    assert (other["identical"], other["different"]) == (0, [1, 5, 17])


def test_speeds_of_requests_that_overlap():
    first = Timeline(10, 0.0, (1.0, 2.0, 3.0, 4.0), (0, 0, 0, 0))
    second = Timeline(30, 0.0, (2.5, 3.5, 4.5), (0, 0, 0))
    assert prefill_tok_s([first, second]) == 40 / 2.5
    assert decode_tok_s([first, second]) == 4 / 2.0, "the tokens after both had begun"
    ended = Timeline(10, 0.0, (1.0, 2.0), (0, 0))
    assert decode_tok_s([ended, second]) == 4 / 3.5, "one had ended before the other began: all that came after the first token"
    assert decode_tok_s([Timeline(10, 0.0, (1.0,), (0,))]) == 0.0


def run_row(**fields):
    return {"case": "curve", "batch": 1, "prompt_len": 128, "ttft_ms_p50": 10.0, "prefix_tier": None, "pages_copied": 0, **fields}


RESULT = engine_report.EngineResult(
    model="tiny",
    dtype="float32",
    threads=1,
    block_tokens=16,
    quick=False,
    parity={"prompts": 20, "identical": 20, "max_abs_logit_diff": 1e-5},
    transformers={"prefill_tok_s": 1.0, "decode_tok_s": 1.0},
    single_stream={},
    runs=[
        run_row(),
        run_row(prompt_len=1024, ttft_ms_p50=80.0),
        run_row(case="prefix_engine_restart", prefix_tier="device", ttft_ms_p50=2.0),
    ],
    ratios={
        "prefill": 1.0,
        "decode": 0.9,
        "streams_8": 2.0,
        "device_hit_ttft": 1.2,
        "device_hit_vs_held": 1.1,
        "engine_restart_ttft": 1.1,
        "resume_vs_recompute": 5.0,
    },
    resume={},
    peak_pages=3,
    pages_copied_on_device_hits=0,
    passed=True,
)


def test_bars_are_met_or_named():
    assert engine_report.missed(RESULT) == []
    worse = replace(
        RESULT,
        ratios={**RESULT.ratios, "decode": 0.89, "engine_restart_ttft": 1.21},
        pages_copied_on_device_hits=2,
        parity={"prompts": 20, "identical": 19, "max_abs_logit_diff": 1e-5},
    )
    assert engine_report.missed(worse) == [
        "decode is 0.890, not >= 0.9",
        "engine_restart_ttft is 1.210, not <= 1.2",
        "hits on the device copied 2 pages, not 0",
        "19 of 20 answers are those of transformers",
    ]


def test_a_report_is_json_or_a_table_of_the_runs(tmp_path):
    fields = {"model": "tiny", "runs": RESULT.runs}
    engine_report.write(fields, tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()) == fields
    engine_report.write(fields, tmp_path / "report.csv")
    with (tmp_path / "report.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["ttft_ms_p50"] for row in rows] == ["10.0", "80.0", "2.0"]
    assert rows[2]["prefix_tier"] == "device"


def test_a_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures are an extra")
    engine_report.draw(RESULT, tmp_path / "ttft.svg")
    assert "prefix engine restart, device" in (tmp_path / "ttft.svg").read_text()


def test_a_table_shows_every_run_also_one_of_a_single_token(capsys):
    rates = {"prefill_tok_s": 12.5, "ttft_ms_p99": 11.0, "decode_tok_s": None, "itl_ms_p50": None, "itl_ms_p99": None}
    command._show_engine(replace(RESULT, runs=[{**run, **rates} for run in RESULT.runs]))
    shown = capsys.readouterr().out
    row = next(line.split() for line in shown.splitlines() if "prefix engine restart" in line)
    assert row == ["prefix", "engine", "restart", "1", "128", "device", "12.5", "–", "2.0", "11.0", "–", "–", "0"]
    assert "20 of 20 answers are those of transformers" in shown


@pytest.mark.parametrize(("name", "sentence"), [("report.txt", "known suffix"), ("nowhere/report.json", "does not exist")])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path, name, sentence):
    with pytest.raises(InvalidRequestError, match=sentence):
        engine_report.check_target(tmp_path / name, engine_report.REPORTS, "out")
    engine_report.check_target(None, engine_report.REPORTS, "out")


def test_a_load_of_nothing_is_refused(tmp_path):
    with pytest.raises(InvalidRequestError, match="at least one request"):
        measure(EngineOptions(tmp_path, batches=(0,)), say=lambda _: None)


def test_the_engine_s_process_learns_all_of_its_options(tmp_path):
    command = engine_command(EngineOptions(tmp_path, dtype="bfloat16", threads=1), first=5, has_reference=True)
    assert command[1:] == ["-m", "tierkv_bench.engine_child", str(tmp_path), "bfloat16", "1", "16", "5", "reference"]
