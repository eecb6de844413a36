"""The metrics of the house, a file for each kind."""
