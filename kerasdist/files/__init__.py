"""Files that neither a full disk nor a kill leaves half written."""
