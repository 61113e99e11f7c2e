"""One round of federated training: the server's loop, the clients' local training, and the scores."""
