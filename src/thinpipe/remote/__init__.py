"""Training split between a client, which has both ends of a model, and a server, which has its middle."""
