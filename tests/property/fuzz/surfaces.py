"""Every door that takes something from outside, with its share of a campaign."""

from __future__ import annotations

from functools import partial

from tests.property.fuzz import (
    beside,
    clusters,
    commands,
    failure_files,
    hostile,
    kept,
    launches,
    plans,
    run_files,
    run_folders,
    texts,
    tokens,
    traces,
    words,
)
from tests.property.fuzz.surface import Surface

SURFACES: tuple[Surface, ...] = (
    Surface("config.json", clusters.make_config, clusters.read_config, hostile.CONFIGS, weight=300),
    *(Surface(kind, partial(clusters.make_dump, kind), clusters.read_dump, hostile.DUMPS.get(kind, ()), weight=80) for kind in clusters.DUMPS),
    Surface("plan.json", plans.make_plan, plans.read_plan, weight=120, ready=plans.plan_trees),
    Surface("plan.json, used", plans.make_plan, plans.use_plan, weight=6, ready=plans.plan_trees),
    Surface("plan.json, explained", plans.make_plan, plans.explain_plan, weight=1, ready=plans.plan_trees),
    Surface("cluster.toml", clusters.make_toml, clusters.read_toml, hostile.CLUSTERS, weight=100),
    Surface("failures.toml", failure_files.make_failures, failure_files.answer_failures, hostile.FAILURES, weight=20, ready=failure_files.a_plan),
    Surface("watched logs", failure_files.make_log, failure_files.watch_log, hostile.LOGS, weight=20, ready=failure_files.a_finished_plan),
    Surface("scheduler events", failure_files.make_events, failure_files.read_events, hostile.EVENTS, weight=40),
    Surface("training runs", partial(kept.make_runs, kept.training_rows), kept.predict_runs, hostile.TRAINING, weight=20),
    Surface("serving runs", partial(kept.make_runs, kept.serving_rows), kept.predict_runs, hostile.SERVING, weight=20),
    Surface("command line", commands.make, words.run_words, hostile.COMMANDS, weight=4, asked=words.words_asked),
    Surface("environment", words.make_environment, words.read_environment, hostile.ENVIRONMENTS, weight=40),
    Surface("dashboard URL", words.make_query, words.read_query, hostile.QUERIES, weight=60),
    Surface("launch files", launches.make_launch, launches.read_launch, (*launches.LAUNCHES, *launches.SLOW), weight=300),
    Surface("launch files, audited", launches.make_launch, launches.audit_launch, weight=2),
    Surface("benchmark results", kept.make_bench, kept.read_bench_file, hostile.BENCHES, weight=60),
    Surface("kept files", kept.make_kept, kept.read_kept, hostile.KEPT, weight=60),
    Surface("settings of a run", run_files.make_settings, run_files.read_settings, weight=20),
    Surface("training data", tokens.make_data, tokens.read_data, tokens.CORPUS, weight=60),
    Surface("training text", texts.make_text, texts.read_text, texts.CORPUS, weight=40),
    Surface("checkpoints", run_folders.make_checkpoint, run_folders.read_checkpoint, weight=20, ready=run_folders.checkpoint_files),
    Surface("published weights", run_folders.make_weights, run_folders.read_weights, weight=20, ready=run_folders.weight_files),
    Surface("tokenizers", run_folders.make_tokenizer, run_folders.read_tokenizer, weight=20, ready=run_folders.tokenizer_tree),
    Surface("files beside traces", beside.make_beside, beside.read_beside, beside.CORPUS, weight=40),
    Surface("traces", traces.make_trace, traces.diagnose_trace, traces.BOMBS, weight=60),
    Surface("nsys exports", traces.make_sql, traces.diagnose_export, weight=40),
    Surface("a run's folder", run_folders.make_run_folder, run_folders.read_run_folder, weight=20),
)  # fmt: skip
