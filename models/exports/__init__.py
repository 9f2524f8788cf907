"""The forms in which `models.export` writes a model, a file for each."""
