"""What a store tells of itself: its numbers, what happened to its blocks and why, and the requests it served, for replays."""
