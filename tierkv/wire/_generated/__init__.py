"""Code generated from `proto/` by `make proto`; never edited by hand, checked to be current by `make check`."""
