"""What knows Kafka's and Faust's insides: how a worker reads, writes, fences, recovers, and hands messages to itself."""
