-- Full-text search over passages and prompts. Needs the fts extension loaded, when it is created and when it is used.
-- `ignore` keeps digits and underscores, so that `487` and `max_iter` are words; no stop words: `if`, `not` and `all` are names here.

PRAGMA create_fts_index('material_texts', 'material_sha256', 'title', 'passage', stemmer = 'porter', stopwords = 'none', ignore = '[^a-z0-9_]+');
PRAGMA create_fts_index('task_texts', 'task_id', 'prompt', stemmer = 'porter', stopwords = 'none', ignore = '[^a-z0-9_]+');

CREATE MACRO search_materials(words) AS TABLE
    SELECT * FROM (SELECT *, fts_main_material_texts.match_bm25(material_sha256, words) AS score FROM material_texts)
    WHERE score IS NOT NULL ORDER BY score DESC, material_sha256;
COMMENT ON MACRO TABLE search_materials IS 'Passages that hold some of the words, best first (BM25). Needs LOAD fts';

CREATE MACRO search_tasks(words) AS TABLE
    SELECT * FROM (SELECT *, fts_main_task_texts.match_bm25(task_id, words) AS score FROM task_texts)
    WHERE score IS NOT NULL ORDER BY score DESC, task_id;
COMMENT ON MACRO TABLE search_tasks IS 'Tasks whose prompt holds some of the words, best first (BM25). Needs LOAD fts';
