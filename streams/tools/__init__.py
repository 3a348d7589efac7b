"""Ways to call a provider: one third-party library each, behind one port."""
