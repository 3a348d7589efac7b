"""The parts of a replay: the log read once more, and its turns folded again; nothing here can publish or call."""
