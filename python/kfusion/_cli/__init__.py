"""The console script `kfusion`, a module per subcommand: read main.py first."""
