"""The parts of the transformers integration; `tierkv.integrations.transformers` is its face.

request (may this call be cached, and what are its rows) → geometry (what one block holds) → restore (leased blocks into cache layers)
→ record (cache layers into reserved blocks), with `layers` as the cache layers both need and `attachment` as the order of it all.
"""
