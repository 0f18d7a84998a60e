"""The TierKV daemon: composition, a thin gRPC servicer, the attach socket, HTTP and the lifecycle."""
