"""The bundled model, greedily: token for token what transformers' `generate` gives, in steps that mix chunks and single tokens."""

from __future__ import annotations

import pytest
import torch

from tests.unit.engine.tiny_models import page_memory
from tierkv.demo.model import bundled_gguf, bundled_model_folder, load_model
from tierkv.demo.story import document
from tierkv.engine.model import Span, Transformer
from tierkv.engine.weights import load

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    # Half a minute on a quiet machine, several on a busy one.
    pytest.mark.timeout(600),
    pytest.mark.skipif(bundled_gguf() is None, reason="the bundled model is not installed"),
]

BLOCK = 16
CHUNK = 512
NEW = 12
LENGTHS = (1, 40, 333, 2000)


def prompts(tokenizer):
    token_ids = tokenizer(document() * 2)["input_ids"]
    return [token_ids[100 * idx : 100 * idx + length] for idx, length in enumerate(LENGTHS)]


def generate_together(transformer, sequences):
    """Appends NEW tokens to each; at most CHUNK tokens of each a step, so that long prompts meet the decodes of short ones."""
    num_pages = -(-(max(LENGTHS) + NEW) // BLOCK)
    tables = [list(range(idx, num_pages * len(sequences), len(sequences))) for idx in range(len(sequences))]
    ends = [len(sequence) + NEW for sequence in sequences]
    starts = [0] * len(sequences)
    while True:
        alive = [idx for idx, sequence in enumerate(sequences) if len(sequence) < ends[idx]]
        if not alive:
            return
        spans = []
        for idx in alive:
            piece = sequences[idx][starts[idx] : starts[idx] + CHUNK]
            starts[idx] += len(piece)
            spans.append(Span(piece, starts[idx] - len(piece), tables[idx], starts[idx] == len(sequences[idx])))
        wanting = [idx for idx, span in zip(alive, spans, strict=True) if span.wants_logits]
        for idx, token_id in zip(wanting, transformer.forward(spans).argmax(-1).tolist(), strict=True):
            sequences[idx].append(token_id)


def test_greedy_tokens_are_those_of_transformers():
    folder = bundled_model_folder()
    own = load(folder)
    transformer = Transformer(own)
    num_pages = -(-(max(LENGTHS) + NEW) // BLOCK) * len(LENGTHS)
    transformer.bind(page_memory(own.layout(BLOCK), num_pages))
    sequences = prompts(own.tokenizer)
    model = load_model(folder)
    expected = []
    for sequence in sequences:
        ids = torch.tensor([sequence])
        options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        expected.append(model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0].tolist())
    generate_together(transformer, sequences)
    assert sequences == expected
