"""What is said about runs of traces: figures of one run, comparisons of many, tables, plots and one page of HTML."""
