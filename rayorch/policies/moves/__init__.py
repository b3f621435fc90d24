"""Which running gangs change their nodes so that less of what is free is stranded."""
