"""The reference engine: a small server of Llama-like models whose attention reads the blocks of a store where they lie.

It needs the extras `torch` and `transformers`; `import tierkv` never loads it. Read it from the bottom up: `config` and `weights` say
what a model is, `memory` maps a pool of pages, `attention` writes and reads K and V in it, `model` runs tokens through the layers.
"""
