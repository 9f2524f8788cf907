"""Steps, data and variables over parameter servers; files are named after their counterparts."""
