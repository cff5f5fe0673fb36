"""Row models of every table: one model a grain, one description a column (units included).

The catalogue generates its column comments from these descriptions, so that none is missing. Rows are flat: str, int,
float, bool, None, and lists of str or int. Hashes are sha256 in hex; times are ISO 8601 in UTC.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field


class Row(BaseModel):
    """Base of all rows. `TABLE` is the table's name, the docstring its comment."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    TABLE: ClassVar[str]

    run: str = Field(description="Name of the run that wrote the row")


class NodeRow(Row):
    """One concept of a run's graph."""

    TABLE: ClassVar[str] = "nodes"
    node_id: str = Field(description="Concept id, stable within the run")
    name: str = Field(description="Preferred name")
    aliases: list[str] = Field(description="Other names found for the same concept")
    domain: str = Field(description="Domain the concept mostly feeds: general, agent or coding")
    level: int = Field(description="Longest distance from a seed, in edges; seeds are 0")
    branch: str = Field(description="Id of the branch (a seed or a child of a seed) the node belongs to; splits never cut one")
    seed: bool = Field(description="True when the concept was given as a seed")
    atomic: bool = Field(description="True when its agent judged it not worth splitting further")
    agent: str = Field(description="Brain that read for the node")
    reason: str = Field(description="Why the branch stopped or went on here")
    queries: list[str] = Field(description="Searches its agent ran")
    confidence: float = Field(description="Confidence of the proposal that created the node, 0 to 1")
    created_at: str = Field(description="When the node was added, UTC")
    found_by: str = Field(default="", description="Brain whose proposal made the node, empty for a seed")
    found_run: str = Field(default="", description="Run that added the node; a later run keeps it")


class EdgeRow(Row):
    """One edge of a run's graph, coarse to fine."""

    TABLE: ClassVar[str] = "edges"
    coarse_id: str = Field(description="Node id of the broader concept")
    fine_id: str = Field(description="Node id of the narrower concept")
    relation: str = Field(description="Relation as found: narrower or broader (the edge always runs coarse to fine)")
    confidence: float = Field(description="Confidence of the proposal, 0 to 1")
    document_ids: list[str] = Field(description="Documents that support the edge")
    quote: str = Field(description="A passage that supports the edge")
    agent: str = Field(description="Brain that proposed the edge")
    created_at: str = Field(description="When the edge was added, UTC")
    found_run: str = Field(default="", description="Run that added the edge; a later run keeps it")


class EdgeEvidenceRow(Row):
    """One passage that supports an edge of a run's graph."""

    TABLE: ClassVar[str] = "edge_evidence"
    coarse_id: str = Field(description="Node id of the broader concept")
    fine_id: str = Field(description="Node id of the narrower concept")
    document_id: str = Field(description="Document the passage is from")
    quote: str = Field(description="The passage, word for word")
    relation: str = Field(description="Relation as proposed: narrower or broader")
    confidence: float = Field(description="Confidence of the proposal that quoted it, 0 to 1")
    agent: str = Field(description="Brain that proposed it")
    found_run: str = Field(description="Run that found it")
    found_at: str = Field(description="When it was found, UTC")


class RelationRow(Row):
    """One passage that relates a node to another concept without an edge: an undirected relation beside the graph."""

    TABLE: ClassVar[str] = "relations"
    node_id: str = Field(description="Node whose agent proposed it")
    name: str = Field(description="Name of the other concept, which need not be a node")
    kind: str = Field(description="related, or equivalent: a claim that the two are one, not (yet) followed by a merge")
    relation: str = Field(description="Relation as proposed; the name of a node's abbreviation may come from an edge's proposal")
    document_id: str = Field(description="Document the passage is from")
    quote: str = Field(description="The passage, word for word")
    confidence: float = Field(description="Confidence of the proposal, 0 to 1")
    agent: str = Field(description="Brain that proposed it")
    found_run: str = Field(description="Run that found it")
    found_at: str = Field(description="When it was found, UTC")


class NodeRedirectRow(Row):
    """Where the id of a node that was merged or split leads: one row a target, all of them live nodes."""

    TABLE: ClassVar[str] = "node_redirects"
    node_id: str = Field(description="Id of the node that is gone")
    target_id: str = Field(description="Node id that stands for it now")
    sense: int = Field(description="Rank of the target: 0 is where the id leads, others are further senses of an ambiguous node")
    kind: str = Field(description="merge or split")
    name: str = Field(description="Preferred name of the node that is gone")
    reason: str = Field(description="Why it was merged or split")
    agent: str = Field(description="Brain or person that decided")
    found_run: str = Field(description="Run that did it")
    found_at: str = Field(description="When it was done, UTC")


class GraphRejectRow(Row):
    """One proposal that did not enter the graph, with the reason."""

    TABLE: ClassVar[str] = "graph_rejects"
    node_id: str = Field(description="Node whose agent proposed it")
    name: str = Field(description="Proposed name")
    relation: str = Field(description="Proposed relation")
    reason: str = Field(description="Why it was rejected: cycle, evidence, budget, name")


class MaterialRow(Row):
    """One passage of a document that supports a node or a task."""

    TABLE: ClassVar[str] = "materials"
    material_sha256: str = Field(description="sha256 of the passage's text")
    document_id: str = Field(description="Document it was taken from")
    title: str = Field(description="Title of the document")
    source: str = Field(description="Package or dictionary the document comes from")
    licence: str = Field(description="Licence of the document")
    passage: str = Field(description="The passage's text")


class NodeMaterialRow(Row):
    """Which passage is evidence for which node."""

    TABLE: ClassVar[str] = "node_materials"
    node_id: str = Field(description="Node the passage supports")
    material_sha256: str = Field(description="sha256 of the passage's text")


class TaskRow(Row):
    """One synthesised candidate task, kept whether it was published or not."""

    TABLE: ClassVar[str] = "tasks"
    task_id: str = Field(description="Content hash of the task (16 hex characters)")
    family: str = Field(description="Environment family")
    domain: str = Field(description="general, agent or coding")
    kind: str = Field(description="Task type within the family")
    level: int = Field(description="Difficulty level, 1 is the easiest")
    branch: str = Field(description="Graph branch the task belongs to")
    split: str = Field(description="train, validation, heldout, or empty when not published")
    status: str = Field(description="published, or the stage that rejected it: synthesis, validation, probe, split")
    reject_reason: str = Field(description="Why it was rejected, empty when published")
    prompt: str = Field(description="The user's message")
    spec_json: str = Field(description="The whole TaskSpec as canonical JSON")
    verifier_kind: str = Field(description="Kind of the hidden verifier")
    verifier_sha256: str = Field(description="sha256 of the hidden verifier's payload")
    verifier_version: int = Field(description="Version of the verifier")
    synthesizer: str = Field(description="Synthesiser that wrote the task")
    synthesizer_version: str = Field(description="Version of the synthesiser")
    licence: str = Field(description="Licence of the material")


class TaskNodeRow(Row):
    """Which graph node a task was sampled from."""

    TABLE: ClassVar[str] = "task_nodes"
    task_id: str = Field(description="Task")
    node_id: str = Field(description="Node")


class TaskMaterialRow(Row):
    """Which passage a task was written from."""

    TABLE: ClassVar[str] = "task_materials"
    task_id: str = Field(description="Task")
    material_sha256: str = Field(description="sha256 of the passage's text")


class RejectedCandidateRow(Row):
    """One candidate that synthesis gave up, refused or filtered; what later stages refuse stays in `tasks` with its reason."""

    TABLE: ClassVar[str] = "rejected_candidates"
    candidate_id: str = Field(description="Task id; empty when nothing was written")
    node_id: str = Field(description="Node it was drawn for")
    kind: str = Field(description="Task type")
    level: int = Field(description="Difficulty level")
    shape: str = Field(description="Node set: single, siblings, chain or cross")
    stage: str = Field(description="draft (the material supports none), check (of the type) or filter")
    reason: str = Field(description="Why it was rejected")


class ShortfallRow(Row):
    """One cell of the target distribution that the graph's material could not fill."""

    TABLE: ClassVar[str] = "synthesis_shortfalls"
    kind: str = Field(description="Task type")
    level: int = Field(description="Difficulty level")
    shape: str = Field(description="Node set: single, siblings, chain or cross")
    wanted: int = Field(description="Tasks aimed for")
    supplied: int = Field(description="Tasks left after the filters")
    reason: str = Field(description="Why it is not more")


class ConstructorRow(Row):
    """What became of one generator's tasks in an earlier run that this one learnt from."""

    TABLE: ClassVar[str] = "constructor_history"
    learned_run: str = Field(description="Run whose tasks these were")
    generator: str = Field(description="Task type and level, as type/level")
    candidates: int = Field(description="Candidates that synthesis, validation or a probe decided on, copies left out")
    valid: int = Field(description="Of these, candidates that passed every check and no exploit")
    episodes: int = Field(description="Scored episodes of policies on them")
    solved: float = Field(description="Sum of the episodes' scores, each 0 to 1")


class ValidationRow(Row):
    """One validation check of one task."""

    TABLE: ClassVar[str] = "validations"
    task_id: str = Field(description="Task")
    verifier_sha256: str = Field(description="Payload of the verifier that was checked")
    verifier_version: int = Field(description="Version of the verifier that was checked")
    check_name: str = Field(description="reference, null, empty, malformed, repeat, or mutation:<name>")
    expected: str = Field(description="Verdict status the check asks for")
    observed: str = Field(description="Verdict status that came")
    ok: bool = Field(description="True when the observed status is the expected one")
    runs: int = Field(description="How often the check was run")
    wall_s: float = Field(description="Seconds the check took in all")
    detail: str = Field(description="What was seen, for a person to read")


class ProbeRow(Row):
    """One exploit tried on one task."""

    TABLE: ClassVar[str] = "probes"
    task_id: str = Field(description="Task")
    verifier_version: int = Field(description="Version of the verifier that was attacked")
    exploit: str = Field(description="Name of the exploit policy")
    exploit_class: str = Field(description="Class in the exploit catalogue")
    succeeded: bool = Field(description="True when the exploit got a pass without doing the task")
    status: str = Field(description="Verdict status the exploit got")
    wall_s: float = Field(description="Seconds the attempt took")
    transcript: str = Field(description="What the exploit did and saw, replayable")


class RolloutRow(Row):
    """One episode of a policy on a task."""

    TABLE: ClassVar[str] = "rollouts"
    trajectory_id: str = Field(description="Id of the episode")
    task_id: str = Field(description="Task")
    stage: str = Field(description="cold_start, expert, mopd or evaluation")
    policy: str = Field(description="Checkpoint id, endpoint model or scripted policy that acted")
    checkpoint_id: str = Field(description="Checkpoint that sampled the last token; empty for policies without weights")
    domain: str = Field(description="general, agent or coding")
    effort: str = Field(description="low, high or max; empty when none was asked for")
    step: int = Field(description="Optimizer step the episode fed; -1 for evaluation")
    teacher: str = Field(description="Checkpoint id of the teacher (MOPD), else empty")
    stop: str = Field(description="Why the episode ended")
    output_tokens: int = Field(description="Tokens the policy sampled")
    thinking_tokens: int = Field(description="Of these, tokens of thinking")
    tool_calls: int = Field(description="Valid tool calls")
    malformed_calls: int = Field(description="Calls that were refused")
    status: str = Field(description="Verdict status")
    score: float | None = Field(description="Verdict score, 0 to 1; NULL without a decision")
    within_budget: bool | None = Field(description="True when its effort tokens are within the effort budget; NULL where no budget applied")
    transcript: str = Field(description="The episode's text, with reserved tokens spelled out")
    evidence: str = Field(default="", description="What the verifier saw, as JSON; never the hidden payload")
    harness_sha256: str = Field(description="Harness the agent met the task in")
    wall_s: float = Field(description="Seconds from setup to verdict")


class HarnessRow(Row):
    """One harness that episodes ran in: what each of its modules is."""

    TABLE: ClassVar[str] = "harnesses"
    harness_sha256: str = Field(description="Content hash of the harness (16 hex characters)")
    name: str = Field(description="Preset, or the presets its modules were drawn from")
    interface: str = Field(description="How calls are written: native, json, xml, fence, bash or code")
    transport: str = Field(description="How calls travel: direct or mcp")
    declaration: str = Field(description="What is said of the tools: names or schema")
    context: str = Field(description="Context management: keep_all, summarise, drop_oldest or drop_all")
    reasoning: str = Field(description="How long reasoning stays: always, tool_use or until_user")
    skills: str = Field(description="Names of its skills, or none")
    memory: str = Field(description="notes, or none")
    subagents: str = Field(description="Sub-agents that may work at a time, or none")
    system_prompt: str = Field(description="First characters of the prompt's hash, or none")
    config_json: str = Field(description="The whole configuration as canonical JSON")


class SegmentRow(Row):
    """A stretch of an episode's context without a fork: exact tokens, and which of them carry loss."""

    TABLE: ClassVar[str] = "segments"
    trajectory_id: str = Field(description="Episode")
    segment_id: int = Field(description="Number within the episode; 0 is the first")
    parent_id: int | None = Field(description="Segment it was forked from; NULL for the first")
    fork: str = Field(description="Where it begins: root, context (its management) or subagent")
    token_ids: list[int] = Field(description="The exact tokens, prompt and observations included; empty for policies without tokens")
    logprobs: list[float] = Field(description="Natural log-probability of each token when it was sampled; 0 where it was not")
    versions: list[int] = Field(description="Policy version that sampled each token; -1 where none did")
    loss_mask: list[int] = Field(description="1 where the token was sampled here, 0 for prompt, observations and what a fork kept")
    malformed: list[int] = Field(description="1 on tokens of refused calls; empty where there are none")
    messages_json: str = Field(description="The messages at the segment's end as JSON; empty for segments that were left behind")


class CallRow(Row):
    """One tool call of an episode, executed or refused."""

    TABLE: ClassVar[str] = "tool_calls"
    trajectory_id: str = Field(description="Episode")
    position: int = Field(description="Number of the call within the episode")
    conversation: int = Field(description="0 is the main agent, others are its sub-agents")
    step: int = Field(description="Assistant message of that agent that made it, from 1")
    tool: str = Field(description="Tool as the agent called it")
    arguments_json: str = Field(description="Arguments as JSON")
    result: str = Field(description="What came back, before the harness cut it")
    error: str = Field(description="Class of the error when it was refused, else empty")
    wall_s: float = Field(description="Seconds it took")


class SubagentRow(Row):
    """One sub-agent of an episode, with the signals that PARL rewards."""

    TABLE: ClassVar[str] = "subagents"
    trajectory_id: str = Field(description="Episode")
    segment_id: int = Field(description="Its first segment")
    step: int = Field(description="Step of the main agent that started it")
    prompt: str = Field(description="What it was asked")
    result: str = Field(description="What it answered")
    stop: str = Field(description="Why it ended")
    finished: bool = Field(description="True when it ended by itself, within its budgets")
    steps: int = Field(description="Its assistant messages")
    output_tokens: int = Field(description="Tokens it sampled")


class RewardRow(Row):
    """The reward that training drew from an episode, and how."""

    TABLE: ClassVar[str] = "rewards"
    trajectory_id: str = Field(description="Episode")
    reward: float = Field(description="Reward after the effort rule")
    outcome_reward: float = Field(description="Reward of the verdict alone")
    advantage: float = Field(description="Reward minus its group's mean")
    budget_tokens: float = Field(description="Token budget in force")
    effort_tokens: int = Field(description="Tokens that counted against the budget")


class CheckpointRow(Row):
    """One set of weights."""

    TABLE: ClassVar[str] = "checkpoints"
    checkpoint_id: str = Field(description="sha256 of the weights file (16 hex characters)")
    parent_id: str = Field(description="Checkpoint it was trained from; empty for the first")
    stage: str = Field(description="cold_start, expert or mopd")
    domain: str = Field(description="Expert's domain, else empty")
    effort: str = Field(description="Expert's effort, else empty")
    step: int = Field(description="Optimizer steps since its parent")
    path: str = Field(description="Folder, relative to the workspace")
    dataset_version: str = Field(description="Version of the dataset it was trained on")
    created_at: str = Field(description="When it was sealed, UTC")


class CheckpointTaskRow(Row):
    """Which task fed which checkpoint, and how often."""

    TABLE: ClassVar[str] = "checkpoint_tasks"
    checkpoint_id: str = Field(description="Checkpoint")
    task_id: str = Field(description="Task")
    episodes: int = Field(description="Episodes of the task that entered its training")


class EvaluationRow(Row):
    """Sampled pass@1 of one policy on one cell of held-out tasks."""

    TABLE: ClassVar[str] = "evaluations"
    policy: str = Field(description="cold_start, expert-<domain>-<effort>, student, or a trivial policy's name")
    checkpoint_id: str = Field(description="Checkpoint, empty for policies without weights")
    domain: str = Field(description="Domain of the held-out tasks")
    effort: str = Field(description="Effort whose budget counts; empty when none applies")
    level: int = Field(description="Difficulty level of the tasks; 0 for all levels")
    tasks: int = Field(description="Held-out tasks")
    samples: int = Field(description="Episodes sampled")
    pass_rate: float = Field(description="Share that passed within the budget, 0 to 1")
    pass_low: float = Field(description="Lower end of the 95% bootstrap interval over tasks")
    pass_high: float = Field(description="Upper end of the 95% bootstrap interval over tasks")
    pass_unbudgeted: float = Field(description="Share that passed, whatever its length")
    mean_tokens: float = Field(description="Mean output tokens an episode")
    mean_effort_tokens: float = Field(description="Mean tokens that count against the budget")
    budget: float = Field(description="Effort budget in tokens, mean over tasks; 0 when none applies")


class MetricRow(Row):
    """One training metric at one step."""

    TABLE: ClassVar[str] = "metrics"
    stage: str = Field(description="Training stage, for example expert-coding-max")
    step: int = Field(description="Optimizer step")
    name: str = Field(description="Metric")
    value: float = Field(description="Value")


class RunRow(Row):
    """One run of the pipeline."""

    TABLE: ClassVar[str] = "runs"
    profile: str = Field(description="laptop, gpu or cluster")
    seed: int = Field(description="Random seed")
    status: str = Field(description="running, finished or failed")
    started_at: str = Field(description="UTC")
    finished_at: str = Field(description="UTC, empty while running")
    prefect_run_url: str = Field(description="Page of the Prefect run, empty without a server")
    config_json: str = Field(description="Resolved configuration")
    git_commit: str = Field(description="Commit of the code, empty outside a checkout")
    dataset_version: str = Field(description="Content hash of the published dataset")


ROW_MODELS: tuple[type[Row], ...] = (
    NodeRow,
    EdgeRow,
    EdgeEvidenceRow,
    RelationRow,
    NodeRedirectRow,
    GraphRejectRow,
    MaterialRow,
    NodeMaterialRow,
    TaskRow,
    TaskNodeRow,
    TaskMaterialRow,
    RejectedCandidateRow,
    ShortfallRow,
    ConstructorRow,
    ValidationRow,
    ProbeRow,
    RolloutRow,
    HarnessRow,
    SegmentRow,
    CallRow,
    SubagentRow,
    RewardRow,
    CheckpointRow,
    CheckpointTaskRow,
    EvaluationRow,
    MetricRow,
    RunRow,
)
