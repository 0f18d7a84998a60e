"""The reference engine; see docs/engine.md."""
