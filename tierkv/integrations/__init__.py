"""Engines on top of a `BlockStore`: identity of the weights, the inference boundary, and one module or package per engine.

Nothing here is imported by `import tierkv`; torch and transformers have their address in the modules named after them.
"""
