"""Files that a full disk or a kill does not tear."""
