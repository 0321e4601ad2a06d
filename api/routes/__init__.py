"""One module a family of routes: read, validate, launch, answer."""
