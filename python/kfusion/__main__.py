"""`python -m kfusion` is the console script `kfusion`."""

from ._cli import main

raise SystemExit(main())
