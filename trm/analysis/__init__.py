"""From result files to a report: tidy tables, fitted laws with intervals, figures.

specs.py    what the commands read, typed and without numpy: the Snakefile imports it
labels.py   name, unit and axis of every column
words.py    how numbers are written in sentences, tables and figures
paper.py    the numbers that the paper reports
tables/     result files -> table.csv, table.csv.json, table.csv.curves.csv
fits/       table -> fit.json: forms, robust multi-start solver, bootstrap, model comparison
stats/      intervals, paired differences, Holm's method, power, Pareto frontiers, critical batch size
kinds/      one module a kind of figure: specification, drawing, words; common.py is what they share
report/     all of it -> report.html, and a PDF printed from it
"""
