"""What implementers test with: contract suites for policies and codecs, and the ARC vector check.

The suites need pytest and hypothesis; this package itself, and `arc_vectors`, need neither.
"""
