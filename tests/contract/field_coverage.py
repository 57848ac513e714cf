"""For each field of each command, the test that fails should the field be dropped.

A new field is a new entry; one whose test is renamed is an entry to change. ``python -m pytest tests/contract`` says
what is missing.
"""

ADMISSION = "tests/unit/engine/test_admission.py"
DEDUP = "tests/unit/engine/test_dedup.py"
CLEANING = "tests/unit/engine/test_cleaning.py"
CONTROL = "tests/unit/engine/test_control.py"
DASHBOARDS = "tests/unit/engine/test_dashboards.py"
EMPTYING = "tests/unit/engine/test_emptying.py"
FIELDS_FILE = "tests/unit/engine/test_fields.py"
FLOW_CHECKS = "tests/unit/test_protocol_flow_entry_checks.py"
FLOW_PUSHES = "tests/unit/engine/test_flow_admission.py"
FINISH_OPTIONS = "tests/unit/engine/test_finish_options.py"
GROUP_COMMANDS = "tests/unit/engine/test_group_commands.py"
GROUPS = "tests/unit/engine/test_named_groups.py"
GROUP_SIZES = "tests/unit/engine/test_group_sizes.py"
FINISHING = "tests/unit/engine/test_finishing.py"
FLOWS = "tests/unit/engine/test_flows.py"
LETTER_FILTER = "tests/unit/engine/test_letter_filter.py"
KEYS = "tests/unit/engine/test_keys.py"
LIMIT_VIEWS = "tests/unit/engine/test_limit_views.py"
LEASES = "tests/unit/engine/test_leases.py"
LETTERS = "tests/unit/engine/test_dead_letters.py"
LISTS = "tests/unit/engine/test_lists.py"
LOGS = "tests/unit/engine/test_log_commands.py"
MOVING = "tests/unit/engine/test_moving.py"
MOVE_TOKENS = "tests/unit/engine/test_move_tokens.py"
OPTIONS = "tests/unit/engine/test_push_options.py"
QUERIES = "tests/unit/engine/test_queries.py"
RERUNNING = "tests/server/test_rerunning.py"
RERUNS = "tests/unit/engine/test_reruns.py"
RUNNING = "tests/unit/engine/test_running.py"
SERIES = "tests/storage/test_series.py"
WORKERS = "tests/unit/engine/test_workers.py"
BROKER = "tests/server/test_broker.py"
CRONS = "tests/unit/engine/test_crons.py"
FIRING = "tests/unit/engine/test_cron_firing.py"
CRON_ROWS = "tests/storage/test_crons.py"
SUBSCRIBERS = "tests/server/test_event_subscribers.py"
WEBHOOKS = "tests/server/test_webhook_registry.py"

CHILD_FAILURES = f"{FLOWS}::test_failures_are_read_by_id_and_kept_apart"
CLEANED = f"{CLEANING}::test_only_jobs_of_the_state_go"
DURABLE = f"{OPTIONS}::test_a_durable_push_or_entry_is_hidden_until_its_commit"
KNOWN = f"{QUERIES}::test_when_memory_has_let_go_of_jobs_the_file_is_asked"
LETTER_POLICY = f"{LETTERS}::test_the_policy_is_merged_and_stored"
LIMITS = f"{MOVING}::test_limits_hold_until_they_are_cleared_and_clearing_wakes_everybody"
MOVE_TOKEN = f"{MOVE_TOKENS}::test_another_token_is_refused"
LINES_CLEARED = f"{LOGS}::test_which_lines_are_cleared"
LINES_SHOWN = f"{LOGS}::test_which_lines_are_shown"
LINK = "tests/unit/engine/test_linking.py::test_both_learn_of_each_other_whatever_their_states"
ODD_LINES = f"{LOGS}::test_message_and_level_may_be_anything_and_come_back_fit_to_be_sent"
RENEWAL = f"{RUNNING}::test_a_renewal_lasts_its_duration_or_the_length_of_the_pull"
STATES = f"{MOVING}::test_a_command_is_taken_in_its_states_and_refused_in_the_others"
DELAYS = f"{MOVING}::test_a_rejected_change_leaves_the_job_as_it_was"
UNKNOWN_QUEUE = f"{QUERIES}::test_an_unknown_queue_is_empty_and_stays_unknown"
WORKER = f"{WORKERS}::test_a_worker_is_described_in_full"
WORKER_COUNTERS = f"{WORKERS}::test_a_heartbeat_replaces_the_counters_it_brings"
LOCK_LENGTH = f"{FIELDS_FILE}::test_the_lock_of_a_pull_lasts_as_long_as_asked"

_OF_GROUP = ("queue", "groupId")
GROUP_COUNTED = dict.fromkeys(_OF_GROUP, f"{GROUP_COMMANDS}::test_counts_are_those_of_the_group")
GROUP_CONCURRENCY = dict.fromkeys(_OF_GROUP, f"{GROUP_COMMANDS}::test_concurrency_is_set_shown_and_removed")
GROUP_RATE = dict.fromkeys(_OF_GROUP, f"{GROUP_COMMANDS}::test_a_rate_limit_is_set_shown_and_removed")
GROUP_PAUSE = dict.fromkeys(_OF_GROUP, f"{GROUP_COMMANDS}::test_pause_and_resume_say_whether_they_changed_anything")

PUSH_OPTIONS = (
    "data", "priority", "delay", "timeout", "maxAttempts", "backoff", "ttl", "dependsOn", "uniqueKey", "tags",
    "groupId", "lifo", "removeOnComplete", "removeOnFail", "stallTimeout", "timestamp", "stackTraceLimit", "keepLogs",
    "sizeLimit", "childrenIds", "parentId", "repeat", "dedup", "debounceId", "debounceTtl", "failParentOnFailure",
    "removeDependencyOnFailure", "continueParentOnFailure", "ignoreDependencyOnFailure", "name",
)  # fmt: skip

SHOWN_OF_FLOW = (
    "priority", "delay", "timeout", "maxAttempts", "backoff", "ttl", "tags", "groupId", "lifo", "removeOnComplete",
    "removeOnFail", "stallTimeout", "timestamp", "stackTraceLimit", "keepLogs", "sizeLimit",
)  # fmt: skip
POLICIES = (
    "failParentOnFailure", "removeDependencyOnFailure", "continueParentOnFailure", "ignoreDependencyOnFailure",
)  # fmt: skip

EVERY_COMMAND = {"reqId": "tests/unit/test_protocol_req_id.py::test_every_command_keeps_its_request_id"}
"""Fields that all commands share."""

IGNORED = {
    ("GetGroupsJobsCount", "maxCount"): "the newer server ignores it as well",
    ("Hello", "capabilities"): "no rule hangs on what a client says it can do",
}
"""Fields that are taken and mean nothing, with the reason."""

FIELDS: dict[str, dict[str, str]] = {
    # work
    "PUSH": {
        **dict.fromkeys(PUSH_OPTIONS, f"{OPTIONS}::test_an_option_of_a_push_shows_in_its_job"),
        "durable": DURABLE,
        "queue": f"{QUERIES}::test_queues_are_listed_in_the_order_of_their_first_use",
        "jobId": f"{QUERIES}::test_only_live_jobs_are_found_by_custom_id",
        "receipt": f"{ADMISSION}::test_a_receipt_tells_level_and_outcome",
        "groupMaxSize": f"{GROUP_SIZES}::test_a_full_group_refuses_a_push",
    },
    "entry of PUSHB": {
        **dict.fromkeys(PUSH_OPTIONS, f"{OPTIONS}::test_an_option_of_an_entry_shows_in_its_job"),
        "durable": DURABLE,
        "customId": f"{DEDUP}::test_one_custom_id_twice_in_a_batch_makes_one_job",
        "groupMaxSize": f"{GROUP_SIZES}::test_a_batch_that_overfills_a_group_is_refused_whole",
    },
    "PUSHB": {
        "queue": f"{ADMISSION}::test_an_empty_batch_makes_the_queue_known",
        "jobs": f"{DEDUP}::test_one_custom_id_twice_in_a_batch_makes_one_job",
        "receipt": f"{ADMISSION}::test_a_batch_receipt_has_an_outcome_per_entry",
    },
    "PUSHF": {"jobs": f"{FLOW_PUSHES}::test_the_reply_holds_the_jobs_in_the_order_of_the_request_without_their_states"},
    "job of PUSHF": {
        "id": f"{FLOW_PUSHES}::test_jobs_of_one_queue_stand_in_the_order_of_the_request",
        "queue": f"{FLOW_PUSHES}::test_the_queues_of_a_flow_become_known",
        "input": f"{FLOW_CHECKS}::test_a_job_must_have_input",
    },
    "input of PUSHF": {
        **dict.fromkeys(SHOWN_OF_FLOW, f"{FLOW_PUSHES}::test_an_option_of_a_flow_shows_in_its_job"),
        **dict.fromkeys(POLICIES, f"{FLOW_PUSHES}::test_a_policy_of_a_child_shows_in_its_job"),
        **dict.fromkeys(
            ("groupMaxSize", "durable", "repeat", "uniqueKey", "dedup", "debounceId", "debounceTtl"),
            f"{FLOW_CHECKS}::test_an_option_is_checked_in_the_words_of_the_wire",
        ),
        **dict.fromkeys(
            ("data", "dependsOn", "childrenIds", "parentId"),
            f"{FLOW_PUSHES}::test_the_reply_holds_the_jobs_in_the_order_of_the_request_without_their_states",
        ),
        "name": f"{FLOW_PUSHES}::test_a_named_job_shows_its_name_beside_its_data",
        "customId": f"{FLOW_PUSHES}::test_only_a_job_that_asks_for_it_is_found_by_its_custom_id",
    },
    "PULL": {
        "queue": f"{LEASES}::test_a_pull_of_an_unknown_queue_finds_nothing_and_makes_none",
        "timeout": f"{BROKER}::test_a_later_pull_never_overtakes_one_that_waits",
        "owner": f"{LEASES}::test_an_owner_gets_a_token_shaped_like_a_uuid",
        "lockTtl": LOCK_LENGTH,
        "group": f"{GROUPS}::test_a_window_starts_with_its_first_hand_out_and_counts_pulls_with_limits",
        "detach": f"{LEASES}::test_only_a_detached_pull_without_owner_outlives_its_connection",
    },
    "PULLB": {
        "queue": f"{LEASES}::test_a_pull_of_an_unknown_queue_finds_nothing_and_makes_none",
        "count": f"{LEASES}::test_a_batch_pull_stops_at_the_concurrency_limit",
        "timeout": f"{BROKER}::test_stopping_answers_parked_pulls_with_nothing_and_hands_out_no_more",
        "owner": f"{LEASES}::test_a_batch_pull_pairs_jobs_and_tokens",
        "group": f"{GROUPS}::test_concurrency_counts_the_active_jobs_of_each_group",
        "lockTtl": LOCK_LENGTH,
    },
    "ACK": {
        "id": f"{FINISHING}::test_the_token_of_a_pull_that_a_crash_erased_completes_the_waiting_job",
        "result": f"{QUERIES}::test_results",
        "token": f"{FINISHING}::test_a_token_that_nobody_was_given_completes_no_waiting_job",
        "removeOnComplete": f"{FINISH_OPTIONS}::test_an_ack_may_remove_its_job",
    },
    "ACKB": {
        "ids": f"{FINISHING}::test_results_pair_up_with_ids",
        "tokens": f"{FINISHING}::test_the_same_rules_hold_in_a_batch",
        "results": f"{FINISHING}::test_results_pair_up_with_ids",
        "removeOnCompletes": f"{FINISH_OPTIONS}::test_removals_of_a_batch_pair_up_with_its_ids",
    },
    "FAIL": {
        "id": f"{FINISHING}::test_an_unrecoverable_failure_is_final",
        "error": f"{FINISHING}::test_a_dead_letter_tells_of_its_last_attempt",
        "token": f"{LEASES}::test_tokens_differ_after_the_wall_clock_went_back",
        "unrecoverable": f"{FINISHING}::test_an_unrecoverable_failure_is_final",
        "stack": f"{FINISHING}::test_which_stack_is_kept",
        "removeOnFail": f"{FINISH_OPTIONS}::test_a_final_failure_may_remove_its_job",
    },
    "JobHeartbeat": {
        "id": f"{RUNNING}::test_a_renewal_shows_as_a_heartbeat",
        "token": RENEWAL,
        "duration": RENEWAL,
    },
    "JobHeartbeatB": dict.fromkeys(
        ("ids", "tokens"), f"{RUNNING}::test_the_batch_counts_the_heartbeats_that_were_accepted"
    ),
    "ExtendLock": {
        "id": RENEWAL,
        "token": f"{RUNNING}::test_who_may_extend_a_lock",
        "duration": RENEWAL,
    },
    "ExtendLocks": dict.fromkeys(("ids", "tokens", "durations"), f"{RUNNING}::test_extend_locks_takes_a_duration_each"),
    "Progress": {
        "id": f"{RUNNING}::test_progress_is_shown_and_kept",
        "progress": f"{RUNNING}::test_progress_is_shown_and_kept",
        "message": f"{RUNNING}::test_a_message_stays_until_it_is_replaced_or_cleared",
    },
    # reading
    "GetProgress": {"id": KNOWN},
    "GetJob": {"id": KNOWN},
    "GetState": {"id": KNOWN},
    "GetResult": {"id": KNOWN},
    "GetJobByCustomId": {"customId": f"{QUERIES}::test_only_live_jobs_are_found_by_custom_id"},
    "Count": {"queue": UNKNOWN_QUEUE},
    "GetJobCounts": {"queue": f"{QUERIES}::test_counts_of_every_state"},
    "ListQueues": {},
    "Dlq": {
        "queue": f"{QUERIES}::test_dead_letters_oldest_first_and_as_many_as_asked_for",
        "count": f"{QUERIES}::test_dead_letters_oldest_first_and_as_many_as_asked_for",
        "filter": f"{LETTER_FILTER}::test_each_condition",
    },
    "GetQueueLimits": {
        "queue": f"{LIMIT_VIEWS}::test_a_rate_limit_and_the_time_until_the_next_token",
        "maxJobs": f"{LIMIT_VIEWS}::test_fewer_than_asked_about_are_used_up",
    },
    "GetDeduplicationJobId": dict.fromkeys(
        ("queue", "deduplicationId"), f"{KEYS}::test_the_holder_is_shown_also_while_it_runs"
    ),
    "GetDlqStats": {"queue": f"{LETTER_FILTER}::test_statistics"},
    "GetJobs": {
        "queue": f"{LISTS}::test_only_jobs_of_the_queue_are_listed",
        "state": f"{LISTS}::test_each_state_has_its_list",
        "offset": f"{LISTS}::test_pages",
        "limit": f"{LISTS}::test_pages",
        "asc": f"{LISTS}::test_the_newest_come_first_when_asc_is_false_or_zero",
    },
    "GetCountsPerPriority": {"queue": f"{LISTS}::test_queued_jobs_are_counted_by_priority"},
    "GetChildrenValues": {"id": f"{FLOWS}::test_values_of_completed_children_of_any_kind"},
    "GetFailedChildrenValues": {"id": CHILD_FAILURES},
    "GetIgnoredChildrenFailures": {"id": CHILD_FAILURES},
    "WaitJob": {
        "id": "tests/unit/engine/test_awaiting.py::test_a_completed_job_is_answered_at_once_with_its_result",
        "timeout": "tests/server/test_job_waits.py::test_a_wait_ends_exactly_at_its_time",
    },
    "Explain": {"id": "tests/unit/engine/test_explaining.py::test_a_leased_job"},
    # managing jobs
    "Cancel": {"id": f"{CONTROL}::test_queued_jobs_can_be_cancelled"},
    "Update": {"id": STATES, "data": f"{MOVING}::test_an_active_job_keeps_its_holder_while_its_data_changes"},
    "ChangePriority": {
        "id": STATES,
        "priority": f"{MOVING}::test_priority_reorders_and_a_job_that_comes_back_keeps_its_turn",
        "lifo": f"{FIELDS_FILE}::test_lifo_of_a_priority_change_turns_the_order_and_stays_when_not_given",
    },
    "Promote": {"id": STATES},
    "PromoteJobs": dict.fromkeys(("queue", "count"), f"{MOVING}::test_promote_jobs_takes_the_oldest_and_count_caps_it"),
    "ChangeDelay": {"id": STATES, "delay": DELAYS, "token": MOVE_TOKEN},
    "MoveToDelayed": {"id": DELAYS, "delay": DELAYS, "token": MOVE_TOKEN},
    "MoveToWait": {"id": f"{MOVING}::test_move_to_wait_makes_a_job_ready_from_anywhere", "token": MOVE_TOKEN},
    "MoveToWaitingChildren": dict.fromkeys(("id", "token"), MOVE_TOKEN),
    "Discard": {"id": STATES, "token": MOVE_TOKEN},
    "RetryDlq": {
        "queue": f"{FIELDS_FILE}::test_retry_dlq_by_id_takes_that_one_and_from_its_own_queue_only",
        "jobId": f"{FIELDS_FILE}::test_retry_dlq_by_id_takes_that_one_and_from_its_own_queue_only",
        "count": f"{MOVING}::test_retry_dlq_takes_the_oldest",
        "filter": f"{LETTER_FILTER}::test_what_the_filter_means_comes_back_in_one_transaction",
    },
    "RemoveDeduplicationKey": dict.fromkeys(
        ("queue", "deduplicationId"), f"{KEYS}::test_a_key_that_was_taken_away_is_free_and_its_job_stays"
    ),
    "RemoveJobDeduplicationKey": {"id": f"{KEYS}::test_only_its_holder_gives_a_key_up"},
    "RemoveDlqJob": dict.fromkeys(
        ("queue", "jobId"), f"{LETTER_FILTER}::test_what_is_no_dead_letter_of_that_queue_stays"
    ),
    "PurgeDlq": {"queue": f"{MOVING}::test_purge_deletes_for_good"},
    "UpdateParent": {"childId": LINK, "parentId": LINK},
    "RemoveChildDependency": {"id": f"{FLOWS}::test_the_last_dependency_releases_the_parent"},
    "RemoveUnprocessedChildren": {"id": f"{FLOWS}::test_children_that_have_not_begun_are_cancelled"},
    "RetryCompleted": {
        "queue": f"{RERUNS}::test_it_must_be_of_that_queue",
        "id": f"{RERUNS}::test_a_completed_job_runs_again_from_the_start",
        "count": f"{RERUNNING}::test_at_most_as_many_run_again_as_asked_for_those_pushed_first",
        "timestamp": f"{RERUNNING}::test_only_those_that_had_completed_by_then_run_again",
    },
    # controlling queues
    "Pause": {"queue": f"{CONTROL}::test_pause_and_resume"},
    "Resume": {"queue": f"{CONTROL}::test_pause_and_resume"},
    "IsPaused": {"queue": f"{CONTROL}::test_pause_and_resume"},
    "SetStallConfig": dict.fromkeys(("queue", "config"), f"{CONTROL}::test_valid_keys_are_merged"),
    "GetStallConfig": {"queue": f"{CONTROL}::test_valid_keys_are_merged"},
    "RateLimit": {
        "queue": LIMITS,
        "limit": LIMITS,
        "duration": f"{FIELDS_FILE}::test_the_duration_of_a_rate_limit_sets_how_fast_tokens_come_back",
        "ttl": f"{FIELDS_FILE}::test_a_rate_limit_lifts_itself_after_its_ttl",
    },
    "RateLimitClear": {"queue": LIMITS},
    "SetConcurrency": {"queue": LIMITS, "limit": LIMITS},
    "ClearConcurrency": {"queue": LIMITS},
    "Drain": {"queue": f"{EMPTYING}::test_drain_removes_what_is_queued_and_nothing_else"},
    "Obliterate": {"queue": f"{EMPTYING}::test_obliterate_leaves_nothing"},
    "Clean": {
        "queue": CLEANED,
        "grace": f"{CLEANING}::test_queued_jobs_are_as_old_as_their_creation",
        "state": CLEANED,
        "limit": f"{CLEANING}::test_the_limit_counts_what_goes_and_the_oldest_go_first",
    },
    "SetDlqConfig": {"queue": LETTER_POLICY, "config": LETTER_POLICY},
    "GetDlqConfig": {"queue": LETTER_POLICY},
    # named groups
    "GetGroupJobsCount": GROUP_COUNTED,
    "GetGroupsJobsCount": {"queue": GROUP_COUNTED["queue"]},
    "GetGroupActiveCount": GROUP_COUNTED,
    "SetGroupConcurrency": {**GROUP_CONCURRENCY, "concurrency": GROUP_CONCURRENCY["queue"]},
    "GetGroupConcurrency": GROUP_CONCURRENCY,
    "RemoveGroupConcurrency": GROUP_CONCURRENCY,
    "SetGroupRateLimit": {**GROUP_RATE, "max": GROUP_RATE["queue"], "duration": GROUP_RATE["queue"]},
    "GetGroupRateLimit": GROUP_RATE,
    "RemoveGroupRateLimit": GROUP_RATE,
    "GetGroupRateLimitTtl": dict.fromkeys(
        ("queue", "groupId", "maxJobs"), f"{GROUP_COMMANDS}::test_the_ttl_of_a_window"
    ),
    "PauseGroup": GROUP_PAUSE,
    "ResumeGroup": GROUP_PAUSE,
    "IsGroupPaused": GROUP_PAUSE,
    "RateLimitGroup": dict.fromkeys(
        ("queue", "groupId", "duration"), f"{GROUP_COMMANDS}::test_a_rest_is_over_when_its_time_is"
    ),
    # watching
    "AddLog": {"id": ODD_LINES, "message": ODD_LINES, "level": ODD_LINES},
    "GetLogs": {"id": LINES_SHOWN, "start": LINES_SHOWN, "end": LINES_SHOWN},
    "ClearLogs": {"id": LINES_CLEARED, "keepLogs": LINES_CLEARED},
    "Stats": {},
    "Metrics": {
        **dict.fromkeys(("queue", "type"), f"{SERIES}::test_completed_and_failed_are_counted_apart_and_by_queue"),
        **dict.fromkeys(("start", "end"), f"{SERIES}::test_a_range_of_minutes"),
    },
    "StorageStatus": {},
    "CompactMemory": {},
    "Prometheus": {},
    "DashboardOverview": {},
    "DashboardQueues": {},
    "DashboardQueue": {
        "queue": f"{DASHBOARDS}::test_a_queue_with_everything",
        "includeJobs": f"{DASHBOARDS}::test_jobs_are_listed_only_when_asked_for",
        "jobsLimit": f"{DASHBOARDS}::test_each_list_is_cut_at_the_limit",
    },
    # crons
    "Cron": {
        "name": f"{CRONS}::test_a_new_cron_is_answered_and_shown",
        "queue": f"{CRONS}::test_a_new_cron_is_answered_and_shown",
        "data": f"{FIRING}::test_a_job_is_made_at_its_time_and_not_before",
        "schedule": f"{CRONS}::test_a_schedule_wins_over_an_interval_that_is_shown_all_the_same",
        "repeatEvery": f"{CRONS}::test_an_interval_begins_now",
        "priority": f"{FIRING}::test_a_job_carries_priority_and_options",
        "timezone": f"{CRONS}::test_a_new_cron_is_answered_and_shown",
        "maxLimit": f"{FIRING}::test_the_limit_ends_it_at_its_next_time",
        "immediately": f"{FIRING}::test_immediately_means_now",
        "uniqueKey": f"{FIRING}::test_whose_key_the_jobs_have",
        "dedup": f"{FIRING}::test_dedup_replace_exchanges_the_job",
        "preventOverlap": f"{FIRING}::test_whose_key_the_jobs_have",
        "skipMissedOnRestart": f"{CRON_ROWS}::test_without_the_switches_there_is_one_run_for_all_that_was_missed",
        "skipIfNoWorker": f"{FIRING}::test_without_a_worker_of_its_queue_it_is_skipped_uncounted",
        "jobOptions": f"{FIRING}::test_a_job_carries_priority_and_options",
        "jobName": f"{FIRING}::test_a_job_is_named_as_its_cron_says",
    },
    "CronGet": {"name": f"{CRONS}::test_a_name_that_nobody_has"},
    "CronList": {},
    "CronDelete": {"name": f"{CRONS}::test_a_removed_cron_fires_no_more_and_its_jobs_stay"},
    # workers and connections
    "RegisterWorker": dict.fromkeys(
        ("name", "queues", "concurrency", "workerId", "hostname", "pid", "startedAt"), WORKER
    ),
    "UnregisterWorker": {"workerId": f"{WORKERS}::test_unregister"},
    "Heartbeat": dict.fromkeys(("id", "activeJobs", "processed", "failed"), WORKER_COUNTERS),
    # webhooks
    "AddWebhook": {
        **dict.fromkeys(("url", "events", "queue"), f"{WEBHOOKS}::test_adding_answers_with_what_was_sent"),
        "secret": "tests/integration/test_webhooks.py::test_a_receiver_gets_the_call",
    },
    "RemoveWebhook": {"webhookId": f"{WEBHOOKS}::test_removing_forgets_the_webhook"},
    "SetWebhookEnabled": dict.fromkeys(("id", "enabled"), f"{WEBHOOKS}::test_switching_is_idempotent_and_counted"),
    # events
    "SubscribeEvents": {"queue": f"{SUBSCRIBERS}::test_events_of_other_queues_are_not_sent"},
    "UnsubscribeEvents": {},
    "TrimEvents": dict.fromkeys(
        ("queue", "maxLength"), f"{SUBSCRIBERS}::test_no_events_are_kept_that_could_be_trimmed"
    ),
    "Auth": {"token": "tests/server/test_session_access.py::test_a_wrong_token_never_logs_out"},
    "Hello": {
        "protocolVersion": "tests/server/test_session.py::test_hello_settles_which_protocol_the_connection_speaks",
    },
    "Ping": {},
}
