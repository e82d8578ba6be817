"""Prompt formats: how an episode becomes model input, and how a response becomes an action."""
