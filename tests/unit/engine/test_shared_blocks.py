"""The engine and the transformers integration have blocks of one kind: what one computed, the other finds."""

import pytest
import torch

import tierkv
from tests.unit.engine.tiny_models import CONFIGS, loaded, random_model
from tierkv.engine.engine import Engine, EngineSettings
from tierkv.engine.sampling import SamplingParams
from tierkv.integrations.transformers import attach, detach

BLOCK_TOKENS = 16
PROMPT = [(idx * 5) % 128 for idx in range(50)]
PARAMS = SamplingParams(max_tokens=20, ignore_eos=True)


@pytest.fixture
def store(tmp_path):
    store = tierkv.open_store(tmp_path, host_memory="16MiB", disk="32MiB", device="cpu:4MiB")
    yield store
    store.close()


def test_a_prefix_saved_by_one_is_found_by_the_other(store):
    model = random_model(CONFIGS["llama"]())
    engine_model = loaded(model)
    ids = torch.tensor([PROMPT])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 20, "do_sample": False, "eos_token_id": None}
    expected = model.generate(ids, **options)
    handle = attach(model, store, block_tokens=BLOCK_TOKENS)
    try:
        model.generate(ids, **options)
        with Engine(engine_model, settings=EngineSettings(block_tokens=BLOCK_TOKENS), store=store) as engine:
            (completion,) = engine.complete([PROMPT], PARAMS)
            assert (completion.cached_tokens, completion.cached_tier) == (48, "host")
            assert list(completion.choices[0].token_ids) == expected[0, 50:].tolist()
            # And the other way round, with what only the engine has seen.
            other = PROMPT[::-1]
            (completion,) = engine.complete([other], PARAMS)
            assert completion.cached_tokens == 0
        store.flush()
        ids = torch.tensor([other])
        answer = model.generate(ids, **options)
        assert handle.last.restored_tokens == 48
        assert list(completion.choices[0].token_ids) == answer[0, 50:].tolist()
    finally:
        detach(model)
