-- How much of its teachers' gain does the student recover, and how many cells have no gain to recover?
SELECT run, round(avg(recovered), 3) AS recovered_mean, round(min(recovered), 3) AS worst_cell,
    count(recovered) AS cells, count(*) - count(recovered) AS null_cells
FROM recovered_share
GROUP BY run
ORDER BY run;
