-- How does the mean reward of each expert move over training, in ten stretches?
SELECT run, domain, effort, ntile AS stretch, min(step) AS from_step, max(step) AS to_step,
    round(sum(mean_reward * episodes) / sum(episodes), 3) AS mean_reward, sum(episodes)::BIGINT AS episodes
FROM (SELECT *, ntile(10) OVER (PARTITION BY run, domain, effort ORDER BY step) AS ntile FROM reward_by_step WHERE stage = 'expert')
GROUP BY run, domain, effort, ntile
ORDER BY run, domain, effort, ntile;
