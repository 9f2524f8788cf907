"""Weights from elsewhere: where they are read from, and to which variable each belongs."""
