"""Weights from elsewhere: where they are read from, and which variable each is for."""
