"""Every option of JAX and every environment variable that could change what is computed or measured, and what happens
to it. A test walks `jax.config.values`: none is missing here.

refused     the model would compute something else, or a time would not match its label: one line
            (`llama_jax.plumbing.settings`: COMPUTING always, MEASURING while something is measured)
recorded    another program, another device or other numbers, on purpose: it is recorded in the environment of every
            result (`environment.settings`) if it is not the usual value
harmless    neither, for the reason given here
unknown     an option of another release of JAX: `llama-jax doctor` names it, and nothing is refused
"""

from __future__ import annotations

import os

from llama_jax.plumbing import settings

RECORDED = {  # option: its usual value
    "jax_default_matmul_precision": "None", "jax_numpy_dtype_promotion": "standard", "jax_softmax_custom_jvp": "False",
    "jax_disable_most_optimizations": "False", "jax_optimization_level": "UNKNOWN",
    "jax_exec_time_optimization_effort": "0.0", "jax_memory_fitting_effort": "0.0", "jax_memory_fitting_level": "O2",
    "jax_compiler_enable_remat_pass": "True", "jax_embedded_constants_max_bytes": "32",
    "jax_use_simplified_jaxpr_constants": "False", "jax_use_shardy_partitioner": "True",
    "jax_threefry_gpu_kernel_lowering": "False", "eager_constant_folding": "False", "jax_scan3": "False",
    "jax_remove_size_one_mesh_axis_from_type": "False", "jax_enable_pgle": "False", "jax_xla_profile_version": "0",
    "jax_platforms": "None", "jax_platform_name": "", "jax_xla_backend": "", "jax_backend_target": "",
    "jax_default_device": "None", "jax_num_cpu_devices": "-1", "jax_cpu_enable_async_dispatch": "True",
    "jax_cuda_visible_devices": "all", "jax_rocm_visible_devices": "all", "jax_oneapi_visible_devices": "all",
    "jax_pjrt_client_create_options": "None", "jax_mock_gpu_topology": "", "mock_num_gpu_processes": "0",
    "jax_log_compiles": "False", "jax_logging_level": "NOTSET", "jax_debug_log_modules": "",
    "jax_include_full_tracebacks_in_locations": "True", "jax_traceback_in_locations_limit": "100",
    "jax_send_traceback_to_runtime": "off", "jax_compiler_detailed_logging_min_ops": "10",
}  # fmt: skip
HARMLESS = {  # why: options
    "what comes from the persistent cache is counted in each trial": (
        "jax_compilation_cache_dir", "jax_enable_compilation_cache", "jax_compilation_cache_max_size",
        "jax_compilation_cache_expect_pgle", "jax_compilation_cache_include_metadata_in_key",
        "jax_persistent_cache_enable_xla_caches", "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes", "jax_raise_persistent_cache_errors",
        "jax_remove_custom_partitioning_ptr_from_cache_key", "jax_hlo_source_file_canonicalization_regex",
    ),
    "the guard itself sets it, and puts it back": ("jax_explain_cache_misses",),
    "it is about gradients, which are not measured": (
        "jax_custom_vjp3", "jax_remat3", "jax_disable_bwd_checks", "jax_use_direct_linearize",
        "jax_log_checkpoint_residuals",
    ),
    "it is about operations that the model does not use": (
        "jax_bcoo_cusparse_lowering", "jax_use_magma", "jax_ragged_dot_use_gpu_pallas_triton_lowering",
        "jax_ragged_dot_use_ragged_dot_instruction", "jax_pallas_enable_debug_checks", "jax_pallas_poison_buffers",
        "jax_pallas_use_mosaic_gpu", "jax_pallas_verbose_errors", "jax_mosaic_allow_hlo",
        "jax_use_emit_pipeline_primitive", "jax_mutable_array_checks", "jax_refs_to_pins",
        "jax2tf_associative_scan_reductions", "jax2tf_default_native_serialization",
    ),
    "it is about programs that are written to files, which name what they were made for": (
        "jax_export_calling_convention_version", "jax_export_ignore_forward_compatibility",
        "jax_serialization_version", "jax_include_debug_info_in_dumps", "jax_dump_ir_modes", "jax_source_url_schema",
    ),
    "it is about several hosts, and a measurement uses one": (
        "jax_cpu_collectives_implementation", "jax_cpu_get_global_topology_timeout_minutes",
        "jax_cpu_get_local_topology_timeout_minutes", "jax_cross_host_transfer_socket_address",
        "jax_cross_host_transfer_timeout_seconds", "jax_cross_host_transfer_transfer_size",
        "jax_cross_host_transport_addresses", "jax_force_dcn_cross_host_transfers", "jax_distributed_debug",
        "jax_enable_preemption_service", "jax_enable_recoverability", "jax_share_binary_between_hosts",
        "jax_share_binary_between_hosts_timeout_ms", "jax_sort_devices_by_process_index", "jax_thread_guard",
        "jax_check_proxy_envs", "jax_auto_pcast", "check_vma", "jax_disable_vmap_shmap_error",
        "jax_disallow_mesh_context_manager",
    ),
    "it changes the text of errors, or raises one more for wrong code": (
        "jax_traceback_filtering", "jax_tracer_error_num_traceback_frames", "jax_pprint_use_color",
        "jax_captured_constants_report_frames", "jax_captured_constants_warn_bytes",
        "jax_debug_leaked_clients_on_clear_backends", "jax_check_static_indices", "jax_explicit_x64_dtypes",
    ),
    "keys are raw, as JAX allows by default, and of the kind that is asked for": (
        "jax_legacy_prng_key", "jax_enable_custom_prng",
    ),
    "it has an effect only under jax_enable_pgle": ("jax_pgle_aggregation_percentile", "jax_pgle_profiling_runs"),
}  # fmt: skip
HANDED_ON, FIXED, LEFT_OUT = "handed on and recorded", "set anew", "left out"
VARIABLES = {  # of the environment, that are no options of JAX: what a measuring process gets of them
    "XLA_FLAGS": HANDED_ON, "TF_XLA_FLAGS": HANDED_ON, "TF_CPP_MIN_LOG_LEVEL": HANDED_ON, "NPROC": HANDED_ON,
    "XLA_PYTHON_CLIENT_PREALLOCATE": HANDED_ON, "XLA_PYTHON_CLIENT_MEM_FRACTION": HANDED_ON,
    "CUDA_VISIBLE_DEVICES": HANDED_ON, "NVIDIA_TF32_OVERRIDE": HANDED_ON, "LLAMA_JAX_ISA": HANDED_ON,
    # as many threads as the measurement has cores
    "OMP_NUM_THREADS": FIXED, "OPENBLAS_NUM_THREADS": FIXED, "MKL_NUM_THREADS": FIXED, "NUMEXPR_NUM_THREADS": FIXED,
    "PYTHONHASHSEED": FIXED, "JAX_COMPILATION_CACHE_DIR": FIXED, "TORCHINDUCTOR_CACHE_DIR": FIXED,
    "OMP_PROC_BIND": LEFT_OUT, "MKL_CBWR": LEFT_OUT, "OPENBLAS_CORETYPE": LEFT_OUT, "KMP_AFFINITY": LEFT_OUT,
    "TORCHDYNAMO_DISABLE": LEFT_OUT, "TORCH_COMPILE_DISABLE": LEFT_OUT, "PYTORCH_JIT": LEFT_OUT,
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": LEFT_OUT, "NUMBA_DISABLE_JIT": LEFT_OUT, "NUMBA_OPT": LEFT_OUT,
    "NPY_DISABLE_CPU_FEATURES": LEFT_OUT, "CUDA_LAUNCH_BLOCKING": LEFT_OUT, "MALLOC_ARENA_MAX": LEFT_OUT,
    "LD_PRELOAD": LEFT_OUT, "GLIBC_TUNABLES": LEFT_OUT, "PYTHONOPTIMIZE": LEFT_OUT, "PYTHONMALLOC": LEFT_OUT,
    "PYTHONDEVMODE": LEFT_OUT, "PYTHONTRACEMALLOC": LEFT_OUT, "PYTHONSTARTUP": LEFT_OUT,
}  # fmt: skip
OTHERS_OF_JAX = (  # variables of JAX that are no options
    "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS", "JAX_COORDINATOR_PORT", "JAX_LOCAL_DEVICE_IDS",
    "JAX_NUM_PROCESSES", "JAX_PARTITION_INDEX", "JAX_PROCESS_ID", "JAX_SLICE_INDEX", "JAX_TPU_PJRT_VERSION",
)  # fmt: skip


def fate(option: str) -> str:
    """What happens to an option, in a few words."""
    rules = {"refused": settings.COMPUTING, "refused where something is measured": settings.MEASURING}
    for word, table in rules.items():
        if option in table:
            good, why = table[option]
            return f"{word}, except for {' or '.join(value or 'nothing' for value in good)}: {why}"
    if option in RECORDED:
        return "recorded"
    return next((f"harmless: {why}" for why, names in HARMLESS.items() if option in names), "unknown")


def changed() -> dict[str, str]:
    """The options that are not as usual, of those that are recorded, with their values. Those that a variable of the
    environment sets stand there already."""
    found = settings.values()
    return {
        name: found[name]
        for name, usual in RECORDED.items()
        if found.get(name, usual) != usual and name.upper() not in os.environ
    }


def remarks() -> list[str]:
    """Lines for `llama-jax doctor`: what is refused here, unknown options, and variables that only look like JAX's."""
    lines, found = [], settings.values()
    lines += settings.complaints(settings.COMPUTING)
    lines += [f"Nothing can be measured: {line}" for line in settings.complaints(settings.MEASURING)]
    if unknown := [name for name in found if fate(name) == "unknown"]:
        lines.append(f"The effect of these options of this JAX on a measurement is unknown: {', '.join(unknown)}.")
    ours = {name.upper() for name in found} | {*OTHERS_OF_JAX}
    strange = [name for name in sorted(os.environ) if name.startswith("JAX_") and name not in ours]
    return lines + [f"{name} is not an option of this JAX, which ignores it." for name in strange]
