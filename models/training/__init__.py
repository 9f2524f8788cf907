"""What `models.train` does with a net: `fit`, fine-tuning, saving, and how a run ends."""
