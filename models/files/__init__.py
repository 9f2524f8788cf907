"""Files and folders of a run: each is written in one piece."""
