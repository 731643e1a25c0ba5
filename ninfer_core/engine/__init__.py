"""The engine: admission, lanes, scheduling, the step, and the facade frontends use."""
