"""The words of the runtime: what is published and stored, and how it is addressed; imports nothing of ours."""
