-- Views for the questions analysts ask, and the macro pass_at_k. Run once on a catalogue whose tables exist.
-- A column without a COMMENT here takes the comment of the table column of the same name.

CREATE MACRO pass_at_k(n, c, k) AS
    CASE
        WHEN n IS NULL OR c IS NULL OR k IS NULL OR k < 1 OR k > n OR c < 0 OR c > n THEN NULL
        WHEN c = 0 THEN 0.0
        WHEN n - c < k THEN 1.0
        ELSE 1.0 - list_product(list_transform(generate_series(n - c + 1, n), lambda i: 1.0 - k::DOUBLE / i))
    END;
COMMENT ON MACRO pass_at_k IS
    'Unbiased chance that at least one of k samples passes, from c passes in n samples: 1 - C(n-c,k)/C(n,k) (Chen et al. 2021). NULL when k > n';

-- ---------------------------------------------------------------------------------------------- from graph to dataset

CREATE VIEW funnel AS
WITH names AS (SELECT run FROM runs UNION SELECT run FROM nodes UNION SELECT run FROM tasks)
SELECT
    names.run,
    (SELECT count(*) FROM nodes n WHERE n.run = names.run) AS nodes,
    (SELECT count(*) FROM edges e WHERE e.run = names.run) AS edges,
    (SELECT count(DISTINCT m.document_id) FROM materials m WHERE m.run = names.run) AS documents,
    (SELECT count(DISTINCT m.material_sha256) FROM materials m WHERE m.run = names.run) AS passages,
    count(t.task_id) AS candidates,
    count(*) FILTER (t.status NOT IN ('synthesis')) AS synthesised,
    count(*) FILTER (t.status NOT IN ('synthesis', 'validation')) AS valid,
    count(*) FILTER (t.status NOT IN ('synthesis', 'validation', 'probe')) AS after_probes,
    count(*) FILTER (t.status = 'published') AS published,
    count(*) FILTER (t.split = 'train') AS train,
    count(*) FILTER (t.split = 'validation') AS validation,
    count(*) FILTER (t.split = 'heldout') AS heldout
FROM names LEFT JOIN tasks t ON t.run = names.run
GROUP BY names.run;
COMMENT ON VIEW funnel IS 'One row a run: how many nodes, passages and tasks were left after each stage';
COMMENT ON COLUMN funnel.nodes IS 'Concepts in the graph';
COMMENT ON COLUMN funnel.edges IS 'Edges in the graph';
COMMENT ON COLUMN funnel.documents IS 'Different documents that a kept passage comes from';
COMMENT ON COLUMN funnel.passages IS 'Different passages kept as evidence or material';
COMMENT ON COLUMN funnel.candidates IS 'Candidate tasks';
COMMENT ON COLUMN funnel.synthesised IS 'Candidates that synthesis itself did not reject';
COMMENT ON COLUMN funnel.valid IS 'Of these, tasks that passed validation';
COMMENT ON COLUMN funnel.after_probes IS 'Of these, tasks that no exploit solved';
COMMENT ON COLUMN funnel.published IS 'Tasks in the dataset';
COMMENT ON COLUMN funnel.train IS 'Published tasks for training';
COMMENT ON COLUMN funnel.validation IS 'Published tasks for validation';
COMMENT ON COLUMN funnel.heldout IS 'Published held-out tasks';

CREATE VIEW task_yield AS
SELECT
    tn.run,
    tn.node_id,
    any_value(n.name) AS node,
    any_value(n.level) AS node_level,
    t.branch,
    t.domain,
    t.kind,
    count(*) AS candidates,
    count(*) FILTER (t.status = 'published') AS published,
    count(*) FILTER (t.status = 'published') / count(*) AS yield,
    mode(nullif(t.reject_reason, '')) AS main_reject_reason
FROM task_nodes tn
JOIN tasks t ON t.run = tn.run AND t.task_id = tn.task_id
LEFT JOIN nodes n ON n.run = tn.run AND n.node_id = tn.node_id
GROUP BY tn.run, tn.node_id, t.branch, t.domain, t.kind;
COMMENT ON VIEW task_yield IS 'One row a run, node and task kind: candidates and how many were published. A task of two nodes counts for both';
COMMENT ON COLUMN task_yield.node IS 'Preferred name of the node';
COMMENT ON COLUMN task_yield.node_level IS 'Longest distance of the node from a seed, in edges';
COMMENT ON COLUMN task_yield.candidates IS 'Candidate tasks';
COMMENT ON COLUMN task_yield.published IS 'Of these, published tasks';
COMMENT ON COLUMN task_yield.yield IS 'published / candidates, 0 to 1';
COMMENT ON COLUMN task_yield.main_reject_reason IS 'Most frequent reason of rejection; NULL when nothing was rejected';

CREATE VIEW validation_failures AS
SELECT
    v.run,
    t.domain,
    v.check_name,
    v.expected,
    v.observed,
    count(DISTINCT v.task_id) AS failing_tasks,
    min(v.task_id) AS example_task_id,
    arg_min(v.detail, v.task_id) AS example_detail
FROM validations v LEFT JOIN tasks t ON t.run = v.run AND t.task_id = v.task_id
WHERE NOT v.ok
GROUP BY v.run, t.domain, v.check_name, v.expected, v.observed;
COMMENT ON VIEW validation_failures IS 'One row a run, domain, check and wrong outcome: how many tasks failed it, with one example';
COMMENT ON COLUMN validation_failures.failing_tasks IS 'Tasks that failed the check this way';
COMMENT ON COLUMN validation_failures.example_task_id IS 'One of them';
COMMENT ON COLUMN validation_failures.example_detail IS 'What was seen on that task';

CREATE VIEW hackable_tasks AS
SELECT
    p.run,
    p.exploit_class,
    t.domain,
    count(DISTINCT p.task_id) AS probed_tasks,
    count(DISTINCT p.task_id) FILTER (p.succeeded) AS hacked_tasks,
    count(DISTINCT p.task_id) FILTER (p.succeeded) / count(DISTINCT p.task_id) AS hacked_share,
    count(DISTINCT p.task_id) FILTER (p.succeeded AND t.status = 'published' AND p.verifier_version = t.verifier_version) AS published_hackable,
    list(DISTINCT p.exploit ORDER BY p.exploit) FILTER (p.succeeded) AS successful_exploits
FROM probes p LEFT JOIN tasks t ON t.run = p.run AND t.task_id = p.task_id
GROUP BY p.run, p.exploit_class, t.domain;
COMMENT ON VIEW hackable_tasks IS 'One row a run, exploit class and domain: how many probed tasks an exploit solved without doing the task';
COMMENT ON COLUMN hackable_tasks.probed_tasks IS 'Tasks an exploit of the class was tried on';
COMMENT ON COLUMN hackable_tasks.hacked_tasks IS 'Of these, tasks that one solved';
COMMENT ON COLUMN hackable_tasks.hacked_share IS 'hacked_tasks / probed_tasks, 0 to 1';
COMMENT ON COLUMN hackable_tasks.published_hackable IS 'Tasks that were published although the verifier version they carry was hacked; must be 0';
COMMENT ON COLUMN hackable_tasks.successful_exploits IS 'Names of the exploits that succeeded; NULL when none did';

-- --------------------------------------------------------------------------------------------------- experts, student

CREATE VIEW expert_gain AS
SELECT
    e.run,
    e.domain,
    e.effort,
    e.tasks,
    c.pass_rate AS sft_pass,
    c.pass_low AS sft_low,
    c.pass_high AS sft_high,
    e.pass_rate AS expert_pass,
    e.pass_low AS expert_low,
    e.pass_high AS expert_high,
    e.pass_rate - c.pass_rate AS gain,
    c.mean_tokens AS sft_tokens,
    e.mean_tokens,
    e.mean_effort_tokens,
    e.budget,
    e.checkpoint_id
FROM evaluations e
LEFT JOIN evaluations c
    ON c.run = e.run AND c.domain = e.domain AND c.effort = e.effort AND c.level = 0 AND c.policy = 'cold_start'
WHERE e.level = 0 AND e.policy = 'expert-' || e.domain || '-' || e.effort;
COMMENT ON VIEW expert_gain IS 'One row a run and expert, on its own domain: pass rate within the budget before (cold start) and after';
COMMENT ON COLUMN expert_gain.sft_pass IS 'Share the cold start passed within the same budget, 0 to 1; NULL when it was not evaluated';
COMMENT ON COLUMN expert_gain.sft_low IS 'Lower end of its 95% interval';
COMMENT ON COLUMN expert_gain.sft_high IS 'Upper end of its 95% interval';
COMMENT ON COLUMN expert_gain.expert_pass IS 'Share the expert passed within the budget, 0 to 1';
COMMENT ON COLUMN expert_gain.expert_low IS 'Lower end of its 95% interval';
COMMENT ON COLUMN expert_gain.expert_high IS 'Upper end of its 95% interval';
COMMENT ON COLUMN expert_gain.gain IS 'expert_pass - sft_pass';
COMMENT ON COLUMN expert_gain.sft_tokens IS 'Mean output tokens an episode of the cold start';
COMMENT ON COLUMN expert_gain.mean_tokens IS 'Mean output tokens an episode of the expert';

CREATE VIEW recovered_share AS
SELECT
    s.run,
    s.domain,
    s.effort,
    g.sft_pass,
    g.expert_pass AS teacher_pass,
    s.pass_rate AS student_pass,
    s.pass_low AS student_low,
    s.pass_high AS student_high,
    s.mean_tokens,
    s.mean_effort_tokens,
    s.budget,
    CASE WHEN g.gain >= 0.05 THEN (s.pass_rate - g.sft_pass) / g.gain END AS recovered,
    s.checkpoint_id
FROM evaluations s
LEFT JOIN expert_gain g ON g.run = s.run AND g.domain = s.domain AND g.effort = s.effort
WHERE s.policy = 'student' AND s.level = 0 AND s.effort <> '';
COMMENT ON VIEW recovered_share IS 'One row a run, domain and effort: the student against its teacher';
COMMENT ON COLUMN recovered_share.sft_pass IS 'Share the cold start passed within the budget, 0 to 1';
COMMENT ON COLUMN recovered_share.teacher_pass IS 'Share the expert passed within the budget, 0 to 1';
COMMENT ON COLUMN recovered_share.student_pass IS 'Share the student passed within the budget, 0 to 1';
COMMENT ON COLUMN recovered_share.student_low IS 'Lower end of its 95% interval';
COMMENT ON COLUMN recovered_share.student_high IS 'Upper end of its 95% interval';
COMMENT ON COLUMN recovered_share.mean_tokens IS 'Mean output tokens an episode of the student';
COMMENT ON COLUMN recovered_share.recovered IS '(student - cold start) / (teacher - cold start), unclipped; NULL when the teacher gained less than 0.05';

CREATE VIEW tokens_by_effort AS
SELECT run, policy, domain, effort, mean_tokens, mean_effort_tokens, budget, pass_rate, pass_unbudgeted
FROM evaluations
WHERE level = 0 AND effort <> '' AND (policy IN ('student', 'cold_start') OR policy = 'expert-' || domain || '-' || effort);
COMMENT ON VIEW tokens_by_effort IS 'One row a run, policy, domain and effort: how long episodes are, for the cold start, the experts on their own domain and the student';

CREATE VIEW trivial_policies AS
SELECT run, policy, domain, effort, tasks, samples, pass_rate, pass_low, pass_high, pass_unbudgeted
FROM evaluations
WHERE level = 0 AND checkpoint_id = '';
COMMENT ON VIEW trivial_policies IS 'One row a run, domain and policy without weights of ours (constant, copy, no tools, an endpoint); trivial ones must stay at or below 0.05';

-- ---------------------------------------------------------------------------------------------------- training, traces

CREATE VIEW reward_by_step AS
SELECT
    r.run,
    r.stage,
    r.domain,
    r.effort,
    r.step,
    count(*) AS episodes,
    avg(w.reward) AS mean_reward,
    avg(w.outcome_reward) AS mean_outcome_reward,
    avg(r.output_tokens) AS mean_tokens,
    avg(CASE WHEN r.within_budget THEN 1.0 WHEN NOT r.within_budget THEN 0.0 END) AS within_budget_share
FROM rollouts r JOIN rewards w ON w.run = r.run AND w.trajectory_id = r.trajectory_id
WHERE r.step >= 0
GROUP BY r.run, r.stage, r.domain, r.effort, r.step;
COMMENT ON VIEW reward_by_step IS 'One row a run, stage, domain, effort and optimizer step: the rewards training drew';
COMMENT ON COLUMN reward_by_step.episodes IS 'Episodes that fed the step';
COMMENT ON COLUMN reward_by_step.mean_reward IS 'Mean reward after the effort rule';
COMMENT ON COLUMN reward_by_step.mean_outcome_reward IS 'Mean reward of the verdicts alone, 0 to 1';
COMMENT ON COLUMN reward_by_step.mean_tokens IS 'Mean output tokens an episode';
COMMENT ON COLUMN reward_by_step.within_budget_share IS 'Share of episodes within the effort budget; NULL where no budget applied';

CREATE VIEW episodes AS
SELECT
    r.*,
    CASE c.stage WHEN 'mopd' THEN 'student' WHEN 'expert' THEN 'expert-' || c.domain || '-' || c.effort WHEN 'cold_start' THEN 'cold_start' ELSE r.policy END
        AS actor,
    t.kind,
    t.level,
    t.split,
    t.prompt
FROM rollouts r
LEFT JOIN tasks t ON t.run = r.run AND t.task_id = r.task_id
LEFT JOIN (SELECT DISTINCT ON (run, checkpoint_id) * FROM checkpoints) c ON c.run = r.run AND c.checkpoint_id = r.checkpoint_id AND r.checkpoint_id <> '';
COMMENT ON VIEW episodes IS 'Every rollout with who acted and the task it acted on';
COMMENT ON COLUMN episodes.actor IS 'cold_start, expert-<domain>-<effort> or student, from its checkpoint; the policy as recorded when the checkpoint is unknown';

CREATE VIEW harness_usage AS
SELECT run, module, option, count(*) AS episodes, avg(CASE WHEN status = 'pass' THEN 1.0 WHEN status = 'fail' THEN 0.0 END) AS pass_rate
FROM (
    UNPIVOT (
        SELECT r.run, r.status, h.interface, h.transport, h.declaration, h.context, h.reasoning, h.skills, h.memory, h.subagents, h.system_prompt
        FROM rollouts r JOIN (SELECT DISTINCT * FROM harnesses) h ON h.run = r.run AND h.harness_sha256 = r.harness_sha256
    ) ON interface, transport, declaration, context, reasoning, skills, memory, subagents, system_prompt INTO NAME module VALUE option
)
GROUP BY run, module, option;
COMMENT ON VIEW harness_usage IS 'One row a run, harness module and option: how often episodes met it, and how often they passed';
COMMENT ON COLUMN harness_usage.module IS 'Module of the harness';
COMMENT ON COLUMN harness_usage.option IS 'What it was set to';
COMMENT ON COLUMN harness_usage.episodes IS 'Episodes that ran in a harness with that option';
COMMENT ON COLUMN harness_usage.pass_rate IS 'Share of decided episodes that passed, 0 to 1';

CREATE VIEW tool_use AS
SELECT
    c.run,
    r.stage,
    r.domain,
    c.tool,
    count(*) AS calls,
    count(*) FILTER (c.error <> '') AS refused,
    count(DISTINCT c.trajectory_id) AS episodes,
    avg(c.wall_s) AS mean_wall_s
FROM tool_calls c JOIN rollouts r ON r.run = c.run AND r.trajectory_id = c.trajectory_id
GROUP BY c.run, r.stage, r.domain, c.tool;
COMMENT ON VIEW tool_use IS 'One row a run, stage, domain and tool: how often it was called, refused, and how long it took';
COMMENT ON COLUMN tool_use.calls IS 'Calls, refused ones included';
COMMENT ON COLUMN tool_use.refused IS 'Calls that were refused: unknown tool, bad arguments, or after the end';
COMMENT ON COLUMN tool_use.episodes IS 'Episodes that called it';
COMMENT ON COLUMN tool_use.mean_wall_s IS 'Mean seconds of a call';

CREATE VIEW best_traces AS
SELECT row_number() OVER (
    PARTITION BY run, stage, actor, domain, effort
    ORDER BY coalesce(within_budget, true) DESC, level DESC NULLS LAST, malformed_calls, output_tokens, trajectory_id
) AS rank, *
FROM episodes
WHERE status = 'pass';
COMMENT ON VIEW best_traces IS 'Passed episodes, ranked within run, stage, actor, domain and effort: within budget, hardest level, fewest malformed calls, shortest';
COMMENT ON COLUMN best_traces.rank IS '1 is the best';
COMMENT ON COLUMN best_traces.actor IS 'cold_start, expert-<domain>-<effort>, student or a policy without weights of ours';

CREATE VIEW worst_traces AS
SELECT row_number() OVER (
    PARTITION BY run, stage, actor, domain, effort
    ORDER BY malformed_calls DESC, level NULLS LAST, output_tokens DESC, trajectory_id
) AS rank, *
FROM episodes
WHERE status <> 'pass';
COMMENT ON VIEW worst_traces IS 'Episodes that did not pass, ranked within run, stage, actor, domain and effort: most malformed calls, easiest level, longest';
COMMENT ON COLUMN worst_traces.rank IS '1 is the worst';
COMMENT ON COLUMN worst_traces.actor IS 'cold_start, expert-<domain>-<effort>, student or a policy without weights of ours';

CREATE VIEW task_passes AS
SELECT
    run, stage, actor, domain, effort, task_id,
    count(*) AS n,
    count(*) FILTER (status = 'pass' AND coalesce(within_budget, true)) AS c
FROM episodes
WHERE status IN ('pass', 'fail', 'tainted', 'unproven')
GROUP BY run, stage, actor, domain, effort, task_id;
COMMENT ON VIEW task_passes IS 'One row an actor and task: n decided episodes and c passes within the budget, as pass_at_k takes them';
COMMENT ON COLUMN task_passes.actor IS 'cold_start, expert-<domain>-<effort>, student or a policy without weights of ours';
COMMENT ON COLUMN task_passes.n IS 'Episodes the verifier decided (no-verdict ones are left out)';
COMMENT ON COLUMN task_passes.c IS 'Of these, passes within the budget';

-- ------------------------------------------------------------------------------------------------------------ lineage

CREATE VIEW lineage AS
WITH failed AS (SELECT run, task_id, count(*) FILTER (NOT ok) AS checks_failed, count(*) AS checks FROM validations GROUP BY run, task_id),
hacked AS (SELECT run, task_id, count(*) FILTER (succeeded) AS exploits_succeeded, count(*) AS exploits FROM probes GROUP BY run, task_id),
acted AS (SELECT run, checkpoint_id, task_id, count(*) AS rollouts FROM rollouts GROUP BY run, checkpoint_id, task_id)
SELECT
    c.run,
    c.checkpoint_id,
    c.parent_id,
    c.stage,
    c.domain AS checkpoint_domain,
    c.effort,
    ct.episodes,
    t.task_id,
    t.domain,
    t.kind,
    t.level,
    t.split,
    t.verifier_kind,
    t.verifier_sha256,
    t.verifier_version,
    coalesce(f.checks, 0) AS checks,
    coalesce(f.checks_failed, 0) AS checks_failed,
    coalesce(h.exploits, 0) AS exploits,
    coalesce(h.exploits_succeeded, 0) AS exploits_succeeded,
    coalesce(a.rollouts, 0) AS rollouts,
    n.node_id,
    n.name AS node,
    n.branch,
    m.material_sha256,
    m.document_id,
    m.title,
    m.source,
    m.licence,
    r.prefect_run_url
FROM checkpoints c
JOIN checkpoint_tasks ct ON ct.run = c.run AND ct.checkpoint_id = c.checkpoint_id
LEFT JOIN tasks t ON t.run = ct.run AND t.task_id = ct.task_id
LEFT JOIN task_nodes tn ON tn.run = ct.run AND tn.task_id = ct.task_id
LEFT JOIN nodes n ON n.run = tn.run AND n.node_id = tn.node_id
LEFT JOIN task_materials tm ON tm.run = ct.run AND tm.task_id = ct.task_id
LEFT JOIN (SELECT DISTINCT ON (run, material_sha256) * FROM materials) m ON m.run = tm.run AND m.material_sha256 = tm.material_sha256
LEFT JOIN failed f ON f.run = ct.run AND f.task_id = ct.task_id
LEFT JOIN hacked h ON h.run = ct.run AND h.task_id = ct.task_id
LEFT JOIN acted a ON a.run = ct.run AND a.task_id = ct.task_id AND a.checkpoint_id = ct.checkpoint_id
LEFT JOIN (SELECT DISTINCT ON (run) * FROM runs ORDER BY run, finished_at DESC) r ON r.run = c.run;
COMMENT ON VIEW lineage IS 'From a checkpoint back: one row a checkpoint, task it was trained on, graph node and passage the task came from';
COMMENT ON COLUMN lineage.checkpoint_domain IS 'Domain of the expert; empty for cold start and student';
COMMENT ON COLUMN lineage.checks IS 'Validation checks of the task';
COMMENT ON COLUMN lineage.checks_failed IS 'Of these, failed ones';
COMMENT ON COLUMN lineage.exploits IS 'Exploits tried on the task';
COMMENT ON COLUMN lineage.exploits_succeeded IS 'Of these, successful ones';
COMMENT ON COLUMN lineage.rollouts IS 'Recorded episodes of this very checkpoint on the task';
COMMENT ON COLUMN lineage.node IS 'Preferred name of the node';

CREATE VIEW ancestry AS
WITH RECURSIVE up AS (
    SELECT run, checkpoint_id, checkpoint_id AS ancestor_id, parent_id, 0 AS generation FROM checkpoints
    UNION
    SELECT up.run, up.checkpoint_id, c.checkpoint_id, c.parent_id, up.generation + 1
    FROM up JOIN checkpoints c ON c.run = up.run AND c.checkpoint_id = up.parent_id
    WHERE up.generation < 100
)
SELECT run, checkpoint_id, ancestor_id, generation FROM up;
COMMENT ON VIEW ancestry IS 'One row a checkpoint and ancestor (itself is generation 0): follow a student or expert back to the cold start';
COMMENT ON COLUMN ancestry.ancestor_id IS 'Checkpoint it descends from';
COMMENT ON COLUMN ancestry.generation IS 'How many parents up';
