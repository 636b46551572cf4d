"""Results to knowledge: tidy tables, fitted laws with intervals, figures, one report.

specs.py    what an experiment may ask for (typed, free of numpy: the Snakefile imports it)
labels.py   every column's name, unit and axis; specs and figures share it
paper.py    the numbers the paper reports
tables/     result files -> table.csv, table.csv.json, table.csv.curves.csv
fits/       table -> fit.json: forms, robust multi-start solver, bootstrap, model comparison
stats/      intervals, paired differences, Pareto frontiers, critical batch size
figures/    table + fit.json -> figure.pdf, .png, .json (caption and sentence)
report/     all of it -> report.html, report.pdf
"""
