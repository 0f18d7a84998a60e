import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from transformers.generation import logits_process as reference

from tierkv.engine import sampling
from tierkv.engine.sampling import SamplingParams, SequenceSampler, filtered, sample
from tierkv.errors import DataError, InvalidRequestError

torch.set_num_threads(1)

PINNED = [0.21413443078764516, 0.7035918133032226]


def logits_of(rows, vocab_size=3000, seed=0):
    return 3 * torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed))


def sampler_of(seed=1, prompt_ids=(), choice=0, **params):
    return SequenceSampler(SamplingParams(**params), seed=seed, prompt_ids=prompt_ids, choice=choice)


def by_transformers(scores, params):
    warpers: list[reference.LogitsProcessor] = [reference.TemperatureLogitsWarper(params.temperature)]
    if params.top_k:
        warpers.append(reference.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(reference.TopPLogitsWarper(params.top_p))
    if params.min_p:
        warpers.append(reference.MinPLogitsWarper(params.min_p))
    ids = torch.zeros(scores.shape[0], 1, dtype=torch.long)
    for warper in warpers:
        scores = warper(ids, scores)
    return scores


ROWS = [
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.3, top_k=50),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(temperature=0.8, min_p=0.05),
    SamplingParams(temperature=2.0, top_k=7, top_p=0.5),
    SamplingParams(temperature=1.0, top_k=100, top_p=0.95, min_p=0.02),
    SamplingParams(temperature=4.0, top_p=0.999),  # needs more than the head of the vocabulary
    SamplingParams(temperature=1.0, top_k=1_000_000),
    SamplingParams(temperature=1.0, top_p=1e-6),
    SamplingParams(temperature=1.0, min_p=1.0),
]


class TestFiltered:
    @pytest.mark.parametrize("params", ROWS, ids=str)
    def test_is_what_transformers_keeps(self, params):
        scores = logits_of(4)
        assert torch.equal(filtered(scores, [params] * 4), by_transformers(scores, params))

    def test_each_row_of_a_mixed_batch_has_its_own_params(self):
        scores = logits_of(len(ROWS), seed=5)
        mixed = filtered(scores, ROWS)
        for row, params in enumerate(ROWS):
            assert torch.equal(mixed[row : row + 1], by_transformers(scores[row : row + 1], params)), params

    def test_tokens_as_likely_as_the_last_kept_one_stay(self):
        scores = torch.tensor([[0.0, 2.0, 2.0, 1.0]])
        kept = filtered(scores, [SamplingParams(temperature=1.0, top_k=1)])
        assert kept.isfinite().tolist() == [[False, True, True, False]]
        kept = filtered(scores, [SamplingParams(temperature=1.0, top_p=0.1)])
        assert kept.isfinite().tolist() == [[False, True, True, False]]


class TestRepetitionPenalty:
    @pytest.mark.parametrize("penalty", [1.3, 0.7])
    def test_is_that_of_transformers_for_prompt_and_generated_tokens(self, penalty):
        logits = logits_of(1)
        sampler = sampler_of(repetition_penalty=penalty, prompt_ids=[5, 6, 5])
        sampler.note(9)
        expected = reference.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([[5, 6, 5, 9]]), logits.clone())
        assert torch.equal(sampling._penalised(logits, [sampler]), expected)

    def test_falls_on_greedy_rows_and_leaves_the_others_and_the_logits_alone(self):
        logits = torch.tensor([[1.0, 3.0, 2.0]] * 2)
        before = logits.clone()
        samplers = [sampler_of(repetition_penalty=2.0, prompt_ids=[1]), sampler_of()]
        assert [drawn.token_id for drawn in sample(logits, samplers)] == [2, 1]
        assert torch.equal(logits, before)


class TestSample:
    def test_greedy_is_the_argmax(self):
        logits = logits_of(5)
        samplers = [sampler_of(temperature=temperature) for temperature in (0.0, 0.0, 1e-6, 0.0, 0.0)]
        assert [drawn.token_id for drawn in sample(logits, samplers)] == logits.argmax(-1).tolist()

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_what_is_no_number_is_never_a_token(self, value, temperature):
        logits = logits_of(2)
        logits[1, 3] = value
        with pytest.raises(DataError, match="no numbers"):
            sample(logits, [sampler_of(), sampler_of(temperature=temperature)])

    def test_an_empty_batch_has_no_tokens(self):
        assert sample(torch.empty(0, 8), []) == []

    def test_a_row_draws_alike_whatever_else_is_in_the_batch(self):
        logits = logits_of(3)
        alone = sample(logits[1:2], [sampler_of(seed=7, temperature=1.0, top_p=0.9)])
        samplers = [sampler_of(seed=1, temperature=0.5, top_k=3), sampler_of(seed=7, temperature=1.0, top_p=0.9), sampler_of()]
        assert sample(logits, samplers)[1] == alone[0]

    def test_a_restarted_sequence_goes_on_alike(self):
        logits = logits_of(1)

        def draw(sampler, count):
            drawn = []
            for _ in range(count):
                drawn.append(sample(logits, [sampler])[0].token_id)
                sampler.note(drawn[-1])
            return drawn

        params = SamplingParams(temperature=1.5, repetition_penalty=1.1)
        whole = draw(SequenceSampler(params, seed=3, prompt_ids=[1, 2]), 12)
        again = SequenceSampler(params, seed=3, prompt_ids=[1, 2])
        for token_id in whole[:5]:
            again.note(token_id)
        assert draw(again, 7) == whole[5:]
        assert len(set(whole)) > 6

    def test_seeds_and_choices_have_streams_of_their_own(self):
        streams = [sampler_of(seed=seed, choice=choice, temperature=1.0) for seed in (0, 1, -1) for choice in (0, 1)]
        assert len({stream.uniform() for stream in streams}) == len(streams)

    def test_the_stream_is_pinned(self):
        # A checkpoint made today goes on alike with a later version.
        sampler = sampler_of(seed=42)
        numbers = [sampler.uniform()]
        sampler.note(0)
        numbers.append(sampler.uniform())
        assert numbers == pytest.approx(PINNED, abs=1e-15)

    def test_frequencies_are_the_probabilities(self):
        logits = torch.tensor([[0.0, 1.0, 2.0, -1.0, 3.0]])
        count = 20_000
        samplers = [sampler_of(seed=seed, temperature=1.0) for seed in range(count)]
        seen = Counter(drawn.token_id for drawn in sample(logits.expand(count, -1), samplers))
        expected = (logits[0].softmax(-1) * count).tolist()
        chi_square = sum((seen[token_id] - mass) ** 2 / mass for token_id, mass in enumerate(expected))
        assert chi_square < 18.5  # 0.1 % of fair samples with four degrees of freedom are above

    def test_what_was_filtered_out_is_never_drawn(self):
        logits = logits_of(1).expand(2000, -1)
        allowed = set(logits[0].topk(3).indices.tolist())
        samplers = [sampler_of(seed=seed, temperature=5.0, top_k=3) for seed in range(2000)]
        assert {drawn.token_id for drawn in sample(logits, samplers)} == allowed

    @pytest.mark.parametrize("uniform", [0.0, 1 - 2**-52])
    def test_the_ends_of_the_stream_draw_tokens_with_mass(self, uniform, monkeypatch):
        monkeypatch.setattr(SequenceSampler, "uniform", lambda _: uniform)
        logits = torch.tensor([[-math.inf, 0.1, 0.2, -math.inf], [-math.inf, -40.0, 0.0, -math.inf]])
        drawn = sample(logits, [sampler_of(temperature=1.0), sampler_of(temperature=1.0)])
        assert {token.token_id for token in drawn} <= {1, 2}


class TestLogprobs:
    def test_are_the_models_own_before_penalty_and_temperature(self):
        logits = logits_of(2)
        samplers = [sampler_of(temperature=2.0, top_k=2, repetition_penalty=1.5, prompt_ids=[4], logprobs=3), sampler_of()]
        drawn, silent = sample(logits, samplers)
        expected = logits[0].log_softmax(-1)
        values, indices = expected.topk(3)
        assert drawn.logprob == pytest.approx(float(expected[drawn.token_id]))
        assert drawn.top == tuple(zip(indices.tolist(), values.tolist(), strict=True))
        assert (silent.logprob, silent.top) == (None, ())

    def test_without_alternatives_there_is_the_tokens_own(self):
        (drawn,) = sample(logits_of(1), [sampler_of(logprobs=0)])
        assert drawn.logprob is not None
        assert drawn.top == ()

    def test_rows_may_want_different_numbers(self):
        few, many = sample(logits_of(2), [sampler_of(logprobs=1), sampler_of(logprobs=20)])
        assert (len(few.top), len(many.top)) == (1, 20)


class TestSamplingParams:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("max_tokens", 0),
            ("max_tokens", True),
            ("temperature", -0.1),
            ("temperature", math.nan),
            ("temperature", math.inf),
            ("temperature", "warm"),
            ("temperature", 10**400),
            ("top_k", -1),
            ("top_k", 2.5),
            ("top_p", 0.0),
            ("top_p", 1.01),
            ("min_p", 1.5),
            ("repetition_penalty", 0.0),
            ("n", 0),
            ("n", sampling.MAX_CHOICES + 1),
            ("seed", 2**64),
            ("logprobs", 21),
            ("ignore_eos", 1),
            ("stop", ("",)),
            ("stop", "abc"),
            ("stop", ("x",) * 17),
            ("stop_token_ids", (-1,)),
        ],
    )
    def test_refuses_and_names_the_field(self, field, value):
        with pytest.raises(InvalidRequestError, match=field) as refused:
            replace(SamplingParams(), **{field: value})
        assert refused.value.context["field"] == field

    def test_the_ends_of_the_ranges_are_allowed(self):
        SamplingParams(max_tokens=1, top_p=1, min_p=1, seed=-(2**63), logprobs=20, n=sampling.MAX_CHOICES, stop=("x" * 1024,))
