"""TierKV: keys and values of language models, kept outside the model."""

__version__ = "0.1.0"
