"""Policies: anything that turns conversations into responses."""
