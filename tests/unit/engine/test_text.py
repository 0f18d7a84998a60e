import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engine.small_tokenizers import BYTE_FALLBACK, BYTE_LEVEL, SPECIAL
from tierkv.engine.text import TextStream
from tierkv.serving.token_names import TokenNames

EMOJI = "naïve café 👩‍👩‍👧 日本語 👍🏽 end"


class Counting:
    """A tokenizer that notes how many tokens it was given at once."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.longest = 0
        self.calls = 0

    def decode(self, token_ids, **options):
        self.longest = max(self.longest, len(token_ids))
        self.calls += 1
        return self._tokenizer.decode(token_ids, **options)


def stream_all(stream, token_ids):
    shown = []
    for token_id in token_ids:
        delta = stream.push(token_id)
        shown.append(delta.text)
        if delta.is_stopped:
            break
    shown.append(stream.flush())
    return shown


def ids_of(text, tokenizer=BYTE_LEVEL):
    return tokenizer.encode(text, add_special_tokens=False)


class TestPieces:
    @pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte_level", "byte_fallback"])
    def test_the_pieces_make_the_whole_text_and_none_has_half_a_character(self, tokenizer):
        token_ids = ids_of(EMOJI, tokenizer)
        assert len(token_ids) > len(EMOJI)
        pieces = stream_all(TextStream(tokenizer, []), token_ids)
        assert "".join(pieces) == EMOJI
        assert not any("\ufffd" in piece for piece in pieces)

    def test_a_character_comes_with_its_last_byte(self):
        stream = TextStream(BYTE_LEVEL, [])
        assert [stream.push(token_id).text for token_id in ids_of("a👍b")] == ["a", "", "", "👍", "b"]

    def test_text_before_half_a_character_does_not_wait_for_it(self):
        stream = TextStream(BYTE_LEVEL, [])
        space_and_half = BYTE_LEVEL.convert_tokens_to_ids("Ġð")
        assert stream.push(space_and_half).text == " "

    def test_a_space_before_the_first_word_stays_behind_a_prompt(self):
        prompt, answer = ids_of("the", BYTE_FALLBACK), [BYTE_FALLBACK.convert_tokens_to_ids("▁cat")]
        assert stream_all(TextStream(BYTE_FALLBACK, prompt), answer) == [" cat", ""]
        assert stream_all(TextStream(BYTE_FALLBACK, []), answer) == ["cat", ""]

    def test_a_character_begun_in_the_prompt_is_shown_whole(self):
        *prompt, last = ids_of("x👍")
        assert TextStream(BYTE_LEVEL, prompt).push(last).text == "👍"

    def test_a_replacement_character_of_the_prompt_is_not_shown_again(self):
        assert TextStream(BYTE_LEVEL, ids_of("x\ufffd")).push(ids_of("a")[0]).text == "a"

    def test_half_a_character_at_the_end_reads_as_a_replacement(self):
        assert stream_all(TextStream(BYTE_LEVEL, []), ids_of("a👍")[:-1]) == ["a", "", "", "\ufffd"]

    def test_special_tokens_have_no_text(self):
        end = BYTE_LEVEL.eos_token_id
        assert "".join(stream_all(TextStream(BYTE_LEVEL, []), [*ids_of("a"), end, end, *ids_of(" b")])) == "a b"

    @pytest.mark.parametrize(
        "token_id", [ids_of("a")[0], ids_of("👍")[-1], BYTE_LEVEL.eos_token_id], ids=["text", "bytes", "special"]
    )
    def test_the_work_of_a_token_is_bounded(self, token_id):
        tokenizer = Counting(BYTE_LEVEL)
        stream = TextStream(tokenizer, [5] * 1000)
        for _ in range(200):
            stream.push(token_id)
        assert tokenizer.longest <= 50
        assert tokenizer.calls <= 2 * 200 + 30

    @settings(max_examples=200, deadline=None)
    @given(st.text(max_size=40), st.integers(0, 10), st.sampled_from([BYTE_LEVEL, BYTE_FALLBACK]))
    def test_any_text_comes_out_as_the_tokenizer_reads_it(self, text, num_prompt, tokenizer):
        token_ids = ids_of(text, tokenizer)
        prompt, answer = token_ids[:num_prompt], token_ids[num_prompt:]
        prompt_text = tokenizer.decode(prompt).rstrip("\ufffd")
        pieces = stream_all(TextStream(tokenizer, prompt), answer)
        if answer:
            assert prompt_text + "".join(pieces) == tokenizer.decode(token_ids)

    def test_any_bytes_come_out_as_the_tokenizer_reads_them(self):
        chance = random.Random(4)
        for _ in range(300):
            token_ids = [chance.randrange(len(BYTE_LEVEL)) for _ in range(chance.randrange(1, 12))]
            assert "".join(stream_all(TextStream(BYTE_LEVEL, []), token_ids)) == BYTE_LEVEL.decode(
                token_ids, skip_special_tokens=True
            )


class TestStop:
    @pytest.mark.parametrize(
        ("stop", "text", "shown"),
        [
            (("END",), "ab END cd", "ab "),
            (("\n\n",), "one\ntwo\n\nthree", "one\ntwo"),
            (("aab",), "aaaab", "aa"),  # the beginning of a stop string may itself hold one
            (("xyz", "bc"), "abcxyz", "a"),
            (("abcd", "bc"), "abcd", "a"),  # the one that is complete first ends the text
            (("👍",), "ok 👍 no", "ok "),
            (("never",), "nev", "nev"),
            (("a",), "a", ""),
        ],
    )
    def test_the_text_ends_before_the_stop_string(self, stop, text, shown):
        pieces = stream_all(TextStream(BYTE_LEVEL, [], stop), ids_of(text))
        assert "".join(pieces) == shown

    def test_what_may_begin_a_stop_string_is_held_back_and_given_out_when_it_does_not(self):
        stream = TextStream(BYTE_LEVEL, [], ["END"])
        assert [stream.push(token_id).text for token_id in ids_of("aENEx")] == ["a", "", "", "EN", "Ex"]

    def test_says_that_it_stopped_and_has_no_text_after(self):
        stream = TextStream(BYTE_LEVEL, [], ["b"])
        deltas = [stream.push(token_id) for token_id in ids_of("abc")]
        assert [(delta.text, delta.is_stopped) for delta in deltas] == [("a", False), ("", True), ("", True)]
        assert stream.flush() == ""

    def test_flush_gives_out_what_was_held_back_once(self):
        stream = TextStream(BYTE_LEVEL, [], ["END"])
        assert [stream.push(token_id).text for token_id in ids_of("aEN")] == ["a", "", ""]
        assert [stream.flush(), stream.flush()] == ["EN", ""]

    @settings(max_examples=300, deadline=None)
    @given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
    def test_is_what_a_search_of_the_whole_text_finds(self, text, stop):
        # Byte by byte, the first stop string to be complete ends the text; of those complete together, the longest.
        ends = [text.find(one) + len(one) for one in stop if one in text]
        complete = [one for one in stop if one in text and text.find(one) + len(one) == min(ends)]
        expected = text[: min(ends) - max(map(len, complete))] if ends else text
        pieces = stream_all(TextStream(BYTE_LEVEL, [], stop), [ids_of(letter)[0] for letter in text])
        assert "".join(pieces) == expected


class TestTokenNames:
    def test_a_token_is_its_text_with_its_leading_space(self):
        names = TokenNames(BYTE_LEVEL)
        assert names.of(BYTE_LEVEL.convert_tokens_to_ids("Ġth")) == (" th", b" th")
        assert names.of(BYTE_LEVEL.eos_token_id) == (SPECIAL, SPECIAL.encode())
        assert TokenNames(BYTE_FALLBACK).of(BYTE_FALLBACK.convert_tokens_to_ids("▁cat")) == (" cat", b" cat")

    def test_part_of_a_character_is_called_by_its_bytes(self):
        names = TokenNames(BYTE_LEVEL)
        first, last = ids_of("👍")[0], ids_of("👍")[-1]
        assert names.of(first) == (r"bytes:\xf0\x9f", b"\xf0\x9f")
        assert names.of(last) == (r"bytes:\x8d", b"\x8d")
        assert TokenNames(BYTE_FALLBACK).of(ids_of("👍", BYTE_FALLBACK)[1]) == (r"bytes:\xf0", b"\xf0")

    def test_the_bytes_of_the_tokens_make_the_text(self):
        names = TokenNames(BYTE_LEVEL)
        assert b"".join(names.of(token_id)[1] for token_id in ids_of(EMOJI)).decode() == EMOJI


def test_without_a_tokenizer_there_is_no_text():
    assert stream_all(TextStream(None, [1, 2]), [3, 4]) == ["", "", ""]
