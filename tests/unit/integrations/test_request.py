"""Reading a call of generate: rows and padding, or the reason for none."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, GenerationConfig

from tierkv.integrations.hf.request import Refusal, Request, read_request

IDS = torch.tensor([[0, 0, 5, 6], [7, 8, 9, 10]])
LEFT = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])


def read(training=False, defaults=None, **arguments):
    return read_request(arguments, defaults or GenerationConfig(), training=training)


def test_rows_are_without_their_padding():
    request = read(input_ids=IDS, attention_mask=LEFT, max_new_tokens=7)
    assert isinstance(request, Request)
    assert [(row.token_ids.tolist(), row.padding) for row in request.rows] == [([5, 6], 2), ([7, 8, 9, 10], 0)]
    assert (request.num_columns, request.room_tokens) == (4, 7)


def test_sequences_asked_for_more_than_once_are_rows_of_their_own():
    request = read(inputs=IDS, attention_mask=LEFT, num_return_sequences=2, do_sample=True)
    assert [row.padding for row in request.rows] == [2, 2, 0, 0]


def test_settings_come_from_the_call_before_the_model():
    config = GenerationConfig(max_length=10, pad_token_id=0, eos_token_id=[0, 3])
    request = read(inputs=IDS, generation_config=config, defaults=GenerationConfig(max_new_tokens=None, pad_token_id=4))
    assert (request.room_tokens, request.pad_token_id) == (6, 0)
    assert [row.padding for row in request.rows] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"num_beams": 2}, "beam search"),
        ({"use_cache": False}, "use_cache"),
        ({"cache_implementation": "static"}, "static"),
        ({"generation_config": GenerationConfig(cache_implementation="quantized")}, "quantized"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive"),
        ({"prompt_lookup_num_tokens": 3}, "prompt lookup"),
        ({"assistant_model": object()}, "assistant_model"),
        ({"custom_generate": "x"}, "custom_generate"),
        ({"inputs_embeds": torch.zeros(2, 4, 8)}, "inputs_embeds"),
        ({"pixel_values": torch.zeros(1)}, "pixel_values"),
        ({"position_ids": IDS}, "position_ids"),
        ({"token_type_ids": LEFT}, "token_type_ids"),
        ({"past_key_values": object()}, "cache of your own"),
        ({"cache": DynamicCache(), "past_key_values": DynamicCache()}, "two caches"),
        ({"attention_mask": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])}, "padding on the right"),
        ({"attention_mask": torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]])}, "holes"),
        ({"attention_mask": torch.tensor([[0, 0, 0, 0], [1, 1, 1, 1]])}, "empty row"),
        ({"attention_mask": torch.ones(2, 6)}, "shape of the prompt"),
        ({"pad_token_id": 0, "eos_token_id": 3}, "no attention_mask"),
        ({"training": True}, "training mode"),
    ],
)
def test_what_may_change_keys_runs_uncached(arguments, reason):
    refusal = read(**{"input_ids": IDS, **arguments})
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason


@pytest.mark.parametrize("prompt", [None, torch.zeros(2, 4), torch.zeros(4, dtype=torch.long), torch.zeros(1, 0, dtype=torch.long)])
def test_prompts_that_are_no_token_ids_run_uncached(prompt):
    assert isinstance(read(input_ids=prompt), Refusal)


def test_a_cache_with_content_runs_uncached():
    cache = DynamicCache()
    cache.update(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4), 0)
    assert isinstance(read(input_ids=IDS, cache=cache), Refusal)
    empty = DynamicCache()
    assert read(input_ids=IDS, cache=empty).cache is empty


def test_harmless_arguments_are_let_through():
    request = read(
        input_ids=IDS,
        attention_mask=LEFT,
        do_sample=True,
        temperature=0.5,
        streamer=object(),
        token_type_ids=torch.zeros_like(IDS),
        return_dict_in_generate=True,
        output_logits=True,
        assistant_model=None,
    )
    assert isinstance(request, Request)
