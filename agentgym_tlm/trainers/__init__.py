"""Trainers: one accelerate loop, one file per algorithm."""
