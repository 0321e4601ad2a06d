"""The KV pages: the map, the tiers, the hottest prefixes, and the owner of a page."""
