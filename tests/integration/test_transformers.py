"""The real model over the real embedded store: float32 answers are equal token for token, before and after everything was closed."""

from __future__ import annotations

import pytest
import torch

import tierkv
from tierkv.demo.model import bundled_model_folder, load_model, load_tokenizer
from tierkv.demo.story import QUESTION, document
from tierkv.integrations.transformers import attach, detach
from tierkv.model.outcomes import TierName

pytestmark = [pytest.mark.model, pytest.mark.slow]
NEW = 12


@pytest.fixture(scope="session")
def smollm():
    torch.set_num_threads(1)
    folder = bundled_model_folder()
    return load_model(folder), load_tokenizer(folder)


@pytest.fixture
def model(smollm):
    yield smollm[0]
    detach(smollm[0])


def open_store(path):
    return tierkv.open_store(path, host_memory="128MiB", disk="256MiB")


def ask(smollm, *questions, words=400):
    model, tokenizer = smollm
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.eos_token
    text = " ".join(document().split()[:words])
    messages = [[{"role": "user", "content": f"{text}\n\n{question}"}] for question in questions]
    options = {"add_generation_prompt": True, "return_dict": True, "return_tensors": "pt", "padding": True}
    encoded = tokenizer.apply_chat_template(messages, **options)
    return model.generate(**encoded, max_new_tokens=NEW, do_sample=False, pad_token_id=tokenizer.pad_token_id)


def test_answers_survive_the_store_and_come_back_from_disk(smollm, model, tmp_path):
    plain = ask(smollm, QUESTION)
    handle = attach(model, store := open_store(tmp_path))
    assert torch.equal(ask(smollm, QUESTION), plain)
    assert handle.last.saved_blocks == (plain.shape[1] - 1) // 16
    assert torch.equal(ask(smollm, QUESTION), plain)
    assert handle.last.tier is TierName.HOST
    prompt_tokens = plain.shape[1] - NEW
    assert handle.last.restored_tokens == min(prompt_tokens // 16 * 16, prompt_tokens - 1)
    detach(model)
    store.close()

    handle = attach(model, store := open_store(tmp_path))
    assert torch.equal(ask(smollm, QUESTION), plain)
    assert handle.last.tier is TierName.DISK
    assert handle.last.restored_tokens == min(prompt_tokens // 16 * 16, prompt_tokens - 1)
    assert handle.counters.failures == 0
    detach(model)
    store.close()


def test_other_questions_and_padded_batches_share_the_document(smollm, model, tmp_path):
    questions = [QUESTION, "How many steps are there, and which of them is cracked?"]
    plain = ask(smollm, *questions)
    handle = attach(model, store := open_store(tmp_path))
    ask(smollm, "Who are you?")
    assert torch.equal(ask(smollm, *questions), plain)
    document_tokens = len(smollm[1](" ".join(document().split()[:400]))["input_ids"])
    assert handle.last.restored_tokens > 2 * (document_tokens - 16)
    detach(model)
    store.close()


def test_bfloat16_weights_are_another_identity(smollm, model, tmp_path):
    store = open_store(tmp_path)
    attach(model, store)
    ask(smollm, QUESTION, words=100)
    detach(model)
    narrow = load_model(bundled_model_folder()).to(torch.bfloat16)
    handle = attach(narrow, store)
    ask((narrow, smollm[1]), QUESTION, words=100)
    assert handle.last.restored_tokens == 0
    assert handle.last.saved_blocks > 0
    detach(narrow)
    store.close()
