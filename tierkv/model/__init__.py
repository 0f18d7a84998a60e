"""Values every station shares: keys, namespaces, layouts, the block lifecycle and outcomes. No I/O, no clock, no threads."""
