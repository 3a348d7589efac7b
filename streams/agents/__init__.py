"""The three stateful agents: topics, table and engine of each, nothing more."""
