"""The operator console and the command line. Sees a server only over HTTP."""
