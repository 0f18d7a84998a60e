"""`tierkv demo`: a real model answers a question about a long document, everything is killed, and it answers again.

`model` finds or makes the model folder, `engine` is the child process that generates, `story` starts, kills and compares.
"""
