"""An engine as a process of its own: `python engine_child.py MODEL DAEMON`, then a line of JSON in and one out for each call.

In: {"prompts": [[token ids]], "max_tokens": n}. Out: {"token_ids", "cached_tokens", "cached_tiers", "pages_copied", "is_private"}, and
first {"ready": true}.
"""

import json
import sys

import torch

from tierkv.engine.engine import EngineSettings, open_engine
from tierkv.engine.sampling import SamplingParams

SETTINGS = EngineSettings(block_tokens=4, max_batch_tokens=64, private_memory_bytes=1 << 20, retry_s=0.05)


def main(model, daemon):
    torch.set_num_threads(1)
    with open_engine(model, daemon=daemon, settings=SETTINGS) as engine:
        sys.stdout.write(json.dumps({"ready": True}) + "\n")
        sys.stdout.flush()
        for line in sys.stdin:
            call = json.loads(line)
            completions = engine.complete(call["prompts"], SamplingParams(max_tokens=call["max_tokens"], ignore_eos=True))
            stats = engine.stats()
            answer = {
                "token_ids": [completion.choices[0].token_ids for completion in completions],
                "cached_tokens": [completion.cached_tokens for completion in completions],
                "cached_tiers": [completion.cached_tier for completion in completions],
                "pages_copied": stats.pages_copied,
                "is_private": stats.is_private,
            }
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
