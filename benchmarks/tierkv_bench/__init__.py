"""Benchmarks that print ratios against a reference measured in the same run. `tierkv bench` and `make bench` run them."""
