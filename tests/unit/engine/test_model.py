"""The engine's forward against that of transformers: the same logits, however a sequence is cut and whoever computes beside it."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from tests.unit.engine.tiny_models import CONFIGS, VOCABULARY, bound, loaded, page_memory, random_model
from tierkv.engine.model import Span, Transformer
from tierkv.errors import ClosedError, InvalidRequestError

BLOCK = 4
PAGES = 64
TOLERANCE = 1e-4


@pytest.fixture(params=list(CONFIGS.values()), ids=list(CONFIGS))
def model(request):
    return random_model(request.param())


@pytest.fixture
def llama():
    return random_model(CONFIGS["llama"]())


class Sequence:
    """Token ids, the pages they get, and what transformers makes of them."""

    def __init__(self, model, pages, *, length, seed):
        self.token_ids = torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
        self.pages = pages
        with torch.inference_mode():
            self.logits = model(torch.tensor([self.token_ids])).logits[0]

    def span(self, start, end, *, wants_logits=True):
        return Span(self.token_ids[start:end], start, self.pages, wants_logits)


def sequences_of(model, lengths, seed=7):
    free = random.Random(seed).sample(range(PAGES), PAGES)
    made = []
    for idx, length in enumerate(lengths):
        pages = [free.pop() for _ in range(-(-length // BLOCK))]
        made.append(Sequence(model, pages, length=length, seed=seed + idx))
    return made


def assert_same(ours, theirs):
    torch.testing.assert_close(ours, torch.stack(theirs), rtol=0, atol=TOLERANCE)


def test_chunks_and_single_tokens_of_many_sequences_give_the_logits_of_transformers(model):
    transformer = bound(model, block_tokens=BLOCK, num_pages=PAGES)
    first, second, third = sequences_of(model, [37, 26, 15])
    steps = [
        [(first, 0, 9), (second, 0, 4)],
        [(second, 4, 5), (first, 9, 21), (third, 0, 1)],
        [(third, 1, 2), (second, 5, 6), (first, 21, 22)],
        [(first, 22, 37), (third, 2, 14), (second, 6, 26)],
        [(third, 14, 15)],
    ]
    for step in steps:
        logits = transformer.forward([sequence.span(start, end) for sequence, start, end in step])
        assert logits.dtype == torch.float32
        assert_same(logits, [sequence.logits[end - 1] for sequence, _, end in step])


def test_a_token_at_a_time(model):
    transformer = bound(model, block_tokens=BLOCK, num_pages=PAGES)
    sequences = sequences_of(model, [21, 21, 9, 2])
    for position in range(21):
        alive = [sequence for sequence in sequences if position < len(sequence.token_ids)]
        logits = transformer.forward([sequence.span(position, position + 1) for sequence in alive])
        assert_same(logits, [sequence.logits[position] for sequence in alive])


def test_only_spans_that_want_logits_get_a_row_in_their_order(llama):
    transformer = bound(llama, block_tokens=BLOCK, num_pages=PAGES)
    first, second, third = sequences_of(llama, [8, 6, 5])
    logits = transformer.forward([first.span(0, 8), second.span(0, 6, wants_logits=False), third.span(0, 5)])
    assert_same(logits, [first.logits[7], third.logits[4]])
    assert transformer.forward([second.span(0, 6, wants_logits=False)]).shape == (0, VOCABULARY)


def test_sequences_share_the_pages_of_a_prefix(llama):
    transformer = bound(llama, block_tokens=BLOCK, num_pages=PAGES)
    (first,) = sequences_of(llama, [12])
    transformer.forward([first.span(0, 12, wants_logits=False)])
    ends = [[5, 6, 7], [9, 9, 9, 9, 9]]
    spans = [Span(end, 12, [*first.pages, *pages], wants_logits=True) for end, pages in zip(ends, ([60], [61, 62]), strict=True)]
    with torch.inference_mode():
        expected = [llama(torch.tensor([first.token_ids + end])).logits[0, -1] for end in ends]
    assert_same(transformer.forward(spans), expected)


def test_pages_of_a_copied_block_serve_as_well(llama):
    own = loaded(llama)
    transformer = Transformer(own)
    old, new = (page_memory(own.layout(BLOCK), PAGES) for _ in range(2))
    (sequence,) = sequences_of(llama, [9])
    transformer.bind(old)
    transformer.forward([sequence.span(0, 8)])
    for target, page in enumerate(sequence.pages[:2]):
        new.restore(old.pages[page], target)
    transformer.bind(new)
    new.restore(new.save(0), 5)
    logits = transformer.forward([Span(sequence.token_ids[8:], 8, [5, 1, 2], wants_logits=True)])
    assert_same(logits, [sequence.logits[8]])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_as_near_to_the_truth_as_transformers_does(llama, dtype):
    transformer = bound(llama, block_tokens=BLOCK, num_pages=PAGES, dtype=str(dtype).removeprefix("torch."))
    (sequence,) = sequences_of(llama, [30])
    rows = [transformer.forward([sequence.span(0, 20)]), transformer.forward([sequence.span(20, 29)])]
    rows.append(transformer.forward([sequence.span(29, 30)]))
    truth = sequence.logits[[19, 28, 29]]
    with torch.inference_mode():
        theirs = llama.to(dtype)(torch.tensor([sequence.token_ids])).logits[0, [19, 28, 29]].float()
    assert (torch.cat(rows) - truth).abs().max() <= 2 * (theirs - truth).abs().max()


def test_pages_of_another_model_are_refused(llama):
    layout = dataclasses.replace(loaded(llama).layout(BLOCK), shape=(2, 2, 2, BLOCK, 16))
    with pytest.raises(InvalidRequestError, match="another model"):
        bound(llama).bind(page_memory(layout, 2))


def test_memory_that_was_given_back_is_not_touched(llama):
    own = loaded(llama)
    memory = page_memory(own.layout(BLOCK), PAGES)
    transformer = Transformer(own)
    transformer.bind(memory)
    memory.close()
    memory.close()
    with pytest.raises(ClosedError):
        transformer.forward([Span([3], 0, [0], wants_logits=True)])
