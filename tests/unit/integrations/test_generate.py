"""`attach` on tiny random models: every call gives what it gave without, whatever was restored, and what was restored was used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers import DynamicCache
from transformers.generation.streamers import BaseStreamer

from tierkv.clock import SystemClock
from tierkv.errors import InvalidRequestError
from tierkv.integrations.transformers import attach, attachment_of, detach
from tierkv.model.outcomes import TierName
from tierkv.testing.clock import ManualClock
from tierkv.testing.fake_store import FakeBlockStore

SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
WINDOW = 12
BLOCK = 4
NEW = 10
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "mistral, all layers with a window": lambda: transformers.MistralConfig(**SMALL, sliding_window=WINDOW),
    "gemma2, windows and full layers": lambda: transformers.Gemma2Config(**SMALL, head_dim=16, sliding_window=WINDOW),
    "gpt2, positions are embedded": lambda: transformers.GPT2Config(
        vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=512, pad_token_id=0, bos_token_id=1, eos_token_id=None
    ),
    "deepseek, values narrower than keys": lambda: transformers.DeepseekV3Config(
        **{**SMALL, "num_key_value_heads": 4, "num_hidden_layers": 2},
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        v_head_dim=12,
        qk_nope_head_dim=8,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
    ),
}


@pytest.fixture
def store():
    return FakeBlockStore()


@pytest.fixture(params=list(CONFIGS.values()), ids=list(CONFIGS))
def model(request):
    yield from _attachable(request.param())


@pytest.fixture
def llama():
    yield from _attachable(CONFIGS["llama"]())


def _attachable(config):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    # Generation must not depend on what a config class thinks of special tokens.
    model.generation_config.pad_token_id = 0
    yield model
    detach(model)


def prompt(length=41, rows=1, seed=3):
    return torch.randint(2, 128, (rows, length), generator=torch.Generator().manual_seed(seed))


def padded(lengths, seed=3):
    """Left-padded rows of the given lengths, which are suffix-free parts of the same random rows."""
    width = max(lengths)
    mask = torch.tensor([[0] * (width - length) + [1] * length for length in lengths])
    return prompt(width, len(lengths), seed) * mask, mask


def generate(model, ids, mask=None, **arguments):
    mask = torch.ones_like(ids) if mask is None else mask
    options = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True, "output_logits": True, **arguments}
    return model.generate(ids, attention_mask=mask, **options)


def assert_same(ours, theirs):
    assert torch.equal(ours.sequences, theirs.sequences)
    for a, b in zip(ours.logits, theirs.logits, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def test_a_second_call_restores_all_but_the_last_token(model, store):
    ids = prompt(40)
    plain = generate(model, ids)
    handle = attach(model, store, block_tokens=BLOCK)
    assert handle.refusal is None
    assert_same(generate(model, ids), plain)
    assert (handle.last.restored_tokens, handle.last.tier) == (0, None)
    assert handle.last.saved_blocks == (40 + NEW - 1) // BLOCK
    assert_same(generate(model, ids), plain)
    assert (handle.last.restored_tokens, handle.last.tier) == (39, TierName.HOST)
    assert handle.last.saved_blocks == 0
    assert handle.counters.failures == 0
    assert not store.backend.leases
    store.check_integrity()


def test_a_later_turn_restores_the_answer_too_and_saves_only_what_is_new(model, store):
    handle = attach(model, store, block_tokens=BLOCK)
    first = generate(model, prompt()).sequences
    ids = torch.cat([first, prompt(21, seed=4)], dim=1)
    second = generate(model, ids)
    resident = (first.shape[1] - 1) // BLOCK
    assert handle.last.restored_tokens == resident * BLOCK
    assert handle.last.saved_blocks == (ids.shape[1] + NEW - 1) // BLOCK - resident
    assert_same(generate(model, ids), second)
    detach(model)
    assert_same(generate(model, ids), second)


def test_rows_of_a_batch_restore_their_common_columns(model, store):
    ids, mask = padded([41, 34, 9])
    plain = generate(model, ids, mask)
    handle = attach(model, store, block_tokens=BLOCK)
    assert_same(generate(model, ids, mask), plain)
    assert handle.last.saved_blocks == sum((length + NEW - 1) // BLOCK for length in (41, 34, 9))
    assert_same(generate(model, ids, mask), plain)
    # The rows hold 40, 32 and 8 restorable tokens behind 0, 7 and 32 columns of padding: the common end is column 39.
    assert handle.last.restored_tokens == 39 + 32 + 7
    assert handle.counters.failures == 0


def test_rows_and_single_calls_share_blocks(model, store):
    ids, mask = padded([41, 34])
    handle = attach(model, store, block_tokens=BLOCK)
    generate(model, ids, mask)
    alone = ids[1:, 7:]
    ours = generate(model, alone)
    assert handle.last.restored_tokens == 32
    detach(model)
    assert_same(ours, generate(model, alone))


def test_a_row_without_anything_still_lets_the_others_keep_their_head(model, store):
    handle = attach(model, store, block_tokens=BLOCK)
    generate(model, prompt(41))
    ids = torch.cat([prompt(41), torch.cat([torch.zeros(1, 21, dtype=torch.long), prompt(20, seed=9)], dim=1)])
    mask = torch.ones_like(ids)
    mask[1, :21] = 0
    ours = generate(model, ids, mask)
    assert handle.last.restored_tokens == 21
    detach(model)
    assert_same(ours, generate(model, ids, mask))


def test_a_second_process_restores_by_weights_alone(model, store):
    other_store = store.another()
    attach(model, store, block_tokens=BLOCK)
    plain = generate(model, prompt())
    twin = type(model)(model.config).eval()
    twin.load_state_dict(model.state_dict())
    twin.generation_config = model.generation_config
    handle = attach(twin, other_store, block_tokens=BLOCK)
    assert_same(generate(twin, prompt()), plain)
    assert handle.last.restored_tokens == 40
    detach(twin)


def test_other_weights_tenants_and_block_sizes_share_nothing(llama, store):
    attach(llama, store, block_tokens=BLOCK).close()
    choices: list[dict[str, Any]] = [{}, {"tenant": "a"}, {"salt": "a"}, {"block_tokens": 8}]
    for options in choices:
        handle = attach(llama, store, **{"block_tokens": BLOCK, **options})
        generate(llama, prompt())
        assert handle.last.restored_tokens == 0
        detach(llama)


@pytest.mark.parametrize("change", [lambda weight: weight.add_(0.01), lambda weight: weight.data.copy_(weight.data + 0.01)])
def test_changed_weights_never_meet_old_keys(llama, store, change):
    handle = attach(llama, store, block_tokens=BLOCK)
    generate(llama, prompt())
    with torch.no_grad():
        change(llama.model.layers[1].self_attn.k_proj.weight)
    ours = generate(llama, prompt())
    assert handle.last.restored_tokens == 0
    assert_same(generate(llama, prompt()), ours)
    assert handle.last.restored_tokens == 40
    detach(llama)
    assert_same(generate(llama, prompt()), ours)


class Collector(BaseStreamer):
    def __init__(self):
        self.values = []

    def put(self, value):
        self.values.extend(value.flatten().tolist())

    def end(self):
        self.values.append("end")


def test_results_streams_and_caches_keep_their_form(llama, store):
    attach(llama, store, block_tokens=BLOCK)
    for _ in range(2):
        streamer = Collector()
        sequences = llama.generate(prompt(), max_new_tokens=NEW, do_sample=False, streamer=streamer)
        assert isinstance(sequences, torch.Tensor)
        assert streamer.values == [*sequences[0].tolist(), "end"]
        result = generate(llama, prompt())
        assert isinstance(result.cache, DynamicCache)
        assert result.cache.get_seq_length() == 41 + NEW - 1


def test_a_cache_that_the_user_keeps_is_not_overwritten(llama, store):
    attach(llama, store, block_tokens=BLOCK)
    generate(llama, prompt())
    kept = generate(llama, prompt()).cache
    before = [layer.keys.clone() for layer in kept.layers]
    generate(llama, prompt(seed=8))
    generate(llama, prompt(seed=8))
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(kept.layers, before, strict=True))


def test_an_empty_cache_of_the_user_is_filled(model, store):
    handle = attach(model, store, block_tokens=BLOCK)
    generate(model, prompt())
    mine = DynamicCache(config=model.config)
    plain = generate(model, prompt(), cache=mine)
    assert handle.last.restored_tokens == 40
    assert plain.cache is mine
    longer = torch.cat([plain.sequences, prompt(3, seed=5)], dim=1)
    ours = generate(model, longer, cache=mine)
    assert "cache of your own" in str(handle.last.reason)
    detach(model)
    assert_same(ours, generate(model, longer))


def test_sampling_draws_the_same_numbers(llama, store):
    handle = attach(llama, store, block_tokens=BLOCK)
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        drawn.append(llama.generate(prompt(), max_new_tokens=NEW, do_sample=True, num_return_sequences=3))
    assert torch.equal(drawn[0], drawn[1])
    assert drawn[0].shape[0] == 3
    assert handle.last.restored_tokens == 3 * 40


def test_prefill_in_chunks_restores_as_well(model, store):
    plain = generate(model, prompt())
    handle = attach(model, store, block_tokens=BLOCK)
    generate(model, prompt(30))
    assert_same(generate(model, prompt(30), prefill_chunk_size=7), generate(model, prompt(30)))
    ids = torch.cat([prompt(30), prompt(30, seed=6)], dim=1)
    ours = generate(model, ids, prefill_chunk_size=7)
    assert handle.last.restored_tokens == 28
    detach(model)
    assert_same(ours, generate(model, ids))
    assert_same(generate(model, prompt()), plain)


def test_rows_that_ended_are_not_saved_beyond_their_end(llama, store):
    ids, mask = padded([41, 34])
    longest = generate(llama, ids, mask).sequences
    end = int(longest[0, 43])
    handle = attach(llama, store, block_tokens=1)
    sequences = generate(llama, ids, mask, eos_token_id=end, pad_token_id=0).sequences
    answer = sequences[0, 41:].tolist()
    expected = sequences.shape[1] - 1 if 0 not in answer else 41 + answer.index(0)
    other = sequences[1, 7:-1].tolist()
    assert handle.last.saved_blocks <= expected + len(other)
    assert handle.counters.failures == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [({"num_beams": 2}, "beam"), ({"cache_implementation": "static"}, "static"), ({"use_cache": False}, "use_cache")],
)
def test_refused_calls_run_uncached_and_say_so_once(llama, store, caplog, arguments, reason):
    options = {"max_new_tokens": 4, "do_sample": False, **arguments}
    plain = llama.generate(prompt(), **options)
    handle = attach(llama, store, block_tokens=BLOCK)
    for _ in range(2):
        assert torch.equal(llama.generate(prompt(), **options), plain)
    assert reason in str(handle.last.reason)
    assert caplog.text.count("runs uncached") == 1
    assert handle.counters.uncached_calls == 2
    assert not store.backend.blocks


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (lambda: transformers.MambaConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, pad_token_id=0), "LinearAttention"),
        (
            lambda: transformers.LlamaConfig(
                **SMALL,
                rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 256},
            ),
            "dynamic",
        ),
    ],
    ids=["mamba", "dynamic rope"],
)
def test_models_that_cannot_be_cached_run_as_before(store, caplog, config, reason):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config()).eval()
    plain = model.generate(prompt(), max_new_tokens=4, do_sample=False, pad_token_id=0)
    handle = attach(model, store)
    assert reason in str(handle.refusal)
    assert reason in caplog.text
    assert torch.equal(model.generate(prompt(), max_new_tokens=4, do_sample=False, pad_token_id=0), plain)
    detach(model)


def test_encoder_decoders_are_refused(store):
    config = transformers.T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    model = transformers.T5ForConditionalGeneration(config).eval()
    handle = attach(model, store)
    assert "encoder-decoder" in str(handle.refusal)
    detach(model)


def test_a_store_that_is_away_costs_a_miss(llama, store):
    plain = generate(llama, prompt())
    handle = attach(llama, store, block_tokens=BLOCK)
    store.unavailable = True
    assert_same(generate(llama, prompt()), plain)
    assert handle.counters.prefix.load_errors == 1
    store.unavailable = False
    generate(llama, prompt())
    assert_same(generate(llama, prompt()), plain)
    assert handle.last.restored_tokens == 40


def test_damaged_blocks_shorten_what_is_restored(llama, store):
    plain = generate(llama, prompt())
    handle = attach(llama, store, block_tokens=BLOCK)
    generate(llama, prompt())
    store.damage(list(store.backend.blocks)[5])
    assert_same(generate(llama, prompt()), plain)
    assert handle.last.restored_tokens == 5 * BLOCK


def test_a_lease_that_ran_out_during_the_copy_is_not_believed(model, monkeypatch):
    clock = ManualClock()
    store = FakeBlockStore(clock=clock)
    plain = generate(model, prompt())
    handle = attach(model, store, block_tokens=BLOCK)
    generate(model, prompt())
    acquire = store.acquire

    def slow_acquire(*args, **kwargs):
        lease = acquire(*args, **kwargs)
        clock.advance(store.backend.limits.lease_ttl_s + 1)
        return lease

    monkeypatch.setattr(store, "acquire", slow_acquire)
    assert_same(generate(model, prompt()), plain)
    assert handle.last.restored_tokens == 0
    assert handle.counters.failures == 0


def test_mistakes_of_ours_cost_a_prefill_and_not_the_call(llama, store, caplog, monkeypatch):
    plain = generate(llama, prompt())
    handle = attach(llama, store, block_tokens=BLOCK)
    monkeypatch.setattr(handle._restorer, "restore", lambda *_: 1 / 0)
    assert_same(generate(llama, prompt()), plain)
    monkeypatch.undo()
    monkeypatch.setattr(handle._recorder, "save", lambda *_: 1 / 0)
    assert_same(generate(llama, prompt()), plain)
    assert handle.counters.failures == 2
    assert "ZeroDivisionError" in caplog.text


def test_errors_of_generate_itself_reach_the_caller(llama, store):
    attach(llama, store, block_tokens=BLOCK)
    generate(llama, prompt())
    with pytest.raises(ValueError, match="not_an_argument"):
        llama.generate(prompt(), not_an_argument=1)
    with pytest.raises(ZeroDivisionError):
        generate(llama, prompt(), stopping_criteria=[lambda *_: 1 / 0])
    assert not store.backend.leases


def test_attaching_twice_is_refused_and_detaching_twice_is_not(llama, store):
    own = llama.generate
    handle = attach(llama, store)
    assert attachment_of(llama) is handle
    with pytest.raises(InvalidRequestError, match="attached already"):
        attach(llama, store)
    detach(llama)
    detach(llama)
    handle.close()
    assert llama.generate == own
    assert attachment_of(llama) is None
    with pytest.raises(InvalidRequestError, match="block_tokens"):
        attach(llama, store, block_tokens=0)


def test_bfloat16_is_kept_as_it_is(llama, store):
    llama.to(torch.bfloat16)
    handle = attach(llama, store, block_tokens=BLOCK)
    generate(llama, prompt())
    first = next(iter(store.backend.namespaces.values())).layout
    assert (first.dtype, first.shape) == ("bfloat16", (3, 2, 2, BLOCK, 16))
    restored = generate(llama, prompt(), max_new_tokens=1).cache
    assert handle.last.restored_tokens == 40
    detach(llama)
    computed = generate(llama, prompt(), max_new_tokens=1).cache
    for ours, theirs in zip(restored.layers, computed.layers, strict=True):
        assert torch.equal(ours.keys[:, :, :40], theirs.keys[:, :, :40])
        assert torch.equal(ours.values[:, :, :40], theirs.values[:, :, :40])


def test_time_is_told(llama, store):
    handle = attach(llama, store, block_tokens=BLOCK)
    started_s = SystemClock().monotonic_s()
    generate(llama, prompt())
    assert 0 < handle.last.restore_s + handle.last.save_s < SystemClock().monotonic_s() - started_s
