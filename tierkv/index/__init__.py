"""What is held and who holds on to it: block entries, leases, reservations, sessions. Pure memory; the store's lock guards it."""
