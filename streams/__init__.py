"""Faust agents, the broker and the command line around the pure engines."""
