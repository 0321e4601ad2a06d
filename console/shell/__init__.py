"""What every screen shares: panels, tables, the bars at the top and the bottom, dialogs."""
