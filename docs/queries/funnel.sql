-- How much is left after each stage, run by run, and what share of the candidates is published?
SELECT run, nodes, documents, candidates, valid, after_probes, published,
    round(published / candidates, 3) AS published_share
FROM funnel
ORDER BY run;
