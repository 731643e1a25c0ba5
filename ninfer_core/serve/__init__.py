"""The HTTP server: one port, the frontends' routes, readiness, and how it starts and stops."""
