"""Reference policies: one block at a time, no chains, no pins, no cap; one paper a file. To compare with, not to serve with."""
