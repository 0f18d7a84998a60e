"""Random requests over random trees of blocks, and traces made of them."""

from hypothesis import strategies as st

from tierkv.simulator.trace import NO_PARENT, BlockSizeSource, Request, Trace


def chains_of(parents):
    """For each key of a tree (`parents`: the parent of each, a smaller key or NO_PARENT) the chain that ends with it."""
    chains = []
    for key, parent in enumerate(parents):
        chains.append([*(chains[parent] if parent != NO_PARENT else []), key])
    return chains


@st.composite
def requests(draw, num_keys=24, max_requests=60):
    """Chains of one tree, head first."""
    parents = [draw(st.integers(NO_PARENT, key - 1)) for key in range(num_keys)]
    chains = chains_of(parents)
    return [chains[key] for key in draw(st.lists(st.integers(0, num_keys - 1), max_size=max_requests))]


def trace_of(chains, sessions=None, num_full=None):
    """A trace of these chains; the keys are renumbered in order of appearance, as a reader does."""
    numbers, parents, made = {}, [], []
    for idx, chain in enumerate(chains):
        for parent, key in zip([None, *chain], chain, strict=False):
            if key not in numbers:
                numbers[key] = len(numbers)
                parents.append(NO_PARENT if parent is None else numbers[parent])
        keys = tuple(numbers[key] for key in chain)
        full = len(keys) if num_full is None else num_full[idx]
        made.append(Request(keys, full, float(idx), None if sessions is None else sessions[idx]))
    accesses = sum(len(chain) for chain in chains)
    return Trace("made", made, parents, None, BlockSizeSource.LINES, accesses)
