"""Recipes: one training run per file, with its command, expected time and expected accuracy."""
