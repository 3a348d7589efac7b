"""Brokers: a local Apache Kafka for development and tests, and the topics a deployment needs."""
