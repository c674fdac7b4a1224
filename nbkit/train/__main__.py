"""`python -m nbkit.train --preset mini --kmax 0.2` trains a mark; `--help` lists the options."""

from nbkit.train import main

main()
