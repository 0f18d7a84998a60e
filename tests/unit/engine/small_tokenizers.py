"""Two tokenizers of a few hundred tokens, of the two kinds that split characters over tokens."""

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = "<|end|>"


def byte_level():
    """One token a byte, and a few longer ones that begin or end inside a character, as byte-level BPE has them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    of_byte = {byte: pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(chr(byte))[0][0] for byte in range(128)}
    space, nine_f = of_byte[32], "\u0141"  # how byte-level writes the byte 0x9f
    words = [*letters, space + "ð", "ð" + nine_f, space + "t", "th", space + "th"]
    vocabulary = {word: number for number, word in enumerate(words)}
    merges = [(space, "ð"), ("ð", nine_f), ("t", "h"), (space, "t"), (space, "th")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.add_special_tokens({"eos_token": SPECIAL})
    return fast


def byte_fallback():
    """As Llama 2 has it: words with a leading ▁, bytes for what no word covers, and the first space stripped."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁cat", "s", "a", "b"]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


BYTE_LEVEL = byte_level()
BYTE_FALLBACK = byte_fallback()
