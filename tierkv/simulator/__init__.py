"""Replays request traces through the eviction policies. It drives the policy objects that the daemon runs, and moves no bytes."""
