"""Several front processes on one port: who owns what, one state, one set of figures."""
