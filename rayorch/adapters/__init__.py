"""One file per outside system; every private name of Ray is in here, behind a contract test."""
