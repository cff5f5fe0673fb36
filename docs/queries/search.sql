-- Which passages tell about max_iter, and which tasks were written from them? (In the duckdb shell: LOAD fts first.)
SELECT s.score, s.title, s.passage, count(DISTINCT tm.task_id) AS tasks
FROM search_materials('max_iter default') s
LEFT JOIN task_materials tm ON tm.material_sha256 = s.material_sha256
GROUP BY s.score, s.title, s.passage
ORDER BY s.score DESC, s.title
LIMIT 10;
