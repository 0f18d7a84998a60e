"""Where blocks go: a pure planner says which moves, residency keeps the books, the mover does the I/O."""
