"""`python -m kfusion` is the console script `kfusion`."""

from ._cli.main import main

raise SystemExit(main())
