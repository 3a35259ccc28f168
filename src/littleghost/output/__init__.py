"""Answers in a type: its JSON Schema for the model, the model's JSON read into it, and what is there of it while it is written."""
