"""The faults that run_faults.py plants. Each is something that a careless change would really do, and that no compiler sees.

  name      of the fault
  file      the one that is edited
  old, new  what is replaced, by what; `old` occurs once, whatever the formatter does to its spaces
  tests     (test executable, --gtest_filter): every pair must pass without the fault and fail with it
  compiled  the sources to compile when the edit is in a header
"""
from typing import NamedTuple


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: list
    compiled: list = []


FAULTS = [
    # What is written.
    Fault("scale-one-ulp", "src/export/packed_formats.cpp", "std::memcpy(at, &bits, width);", "++bits; std::memcpy(at, &bits, width);",
          [("llmq_golden_formats", "PackedFormats.BytesEqualTheLibraries"), ("llmq_unit_export", "ModelWriterTest.*ReadsBack")]),
    Fault("scale-sign", "src/export/packed_formats.cpp", "to_bfloat16(scale); bits = half.bits,", "to_bfloat16(scale); bits = half.bits ^ 0x8000u,",
          [("llmq_golden_formats", "PackedFormats.BytesEqualTheLibraries"), ("llmq_unit_export", "ModelWriterTest.*ReadsBack")]),
    Fault("float32-scale-sign", "src/export/packed_formats.cpp", "std::uint32_t bits = bits_from_float(scale);",
          "std::uint32_t bits = bits_from_float(scale) ^ 0x80000000u;", [("llmq_unit_export", "ModelWriterTest.CompressedTensorsReadsBack")]),
    Fault("awq-nibbles-swapped", "src/tensor/packed_layout.cpp", "kAwqOrder = {0, 2, 4, 6, 1, 3, 5, 7};", "kAwqOrder = {0, 2, 4, 6, 3, 1, 5, 7};",
          [("llmq_unit_tensor", "PackedLayout.*"), ("llmq_golden_formats", "PackedFormats.BytesEqualTheLibraries")]),
    Fault("parent-not-synced", "src/export/unfinished_output.cpp", "named = true; io_.sync_directory(parent_of(to));", "named = true;",
          [("llmq_unit_export", "ModelDirectory.*")]),
    Fault("config-not-synced", "src/export/model_directory.cpp", "file->sync(); }", "}", [("llmq_unit_export", "ModelDirectory.*")]),
    Fault("config-not-last", "src/export/model_directory.cpp",
          "for (const auto& file : texts) write_file(file.first, file.second); write_file(\"config.json\", config.dump(2) + \"\\n\");",
          "write_file(\"config.json\", config.dump(2) + \"\\n\"); for (const auto& file : texts) write_file(file.first, file.second);",
          [("llmq_unit_export", "ModelDirectory.*")]),
    Fault("block-not-synced", "src/export/model_directory.cpp", "for (SafetensorsWriter& shard : shards_) shard.sync(); Json tensors", "Json tensors",
          [("llmq_unit_quant", "PowerLoss.*")]),
    Fault("journal-not-synced", "src/io/journal.cpp", "file_->sync();", "", [("llmq_unit_quant", "PowerLoss.*")]),
    Fault("damaged-block-believed", "src/io/partial_file.cpp", "return digest.hex() == sha256;", "return !sha256.empty();",
          [("llmq_unit_quant", "Resume.*")]),
    Fault("folded-gain-from-the-original", "src/quant/finished_block.cpp", "return changed.count(tensor) != 0 ? written : run.source;",
          "return changed.count(tensor) != 0 ? run.source : run.source;", [("llmq_unit_quant", "Resume.*")]),
    Fault("report-name-not-escaped", "src/export/html_charts.cpp", 'safe += "&lt;";', "safe += '<';", [("llmq_unit_export", "HtmlReport.HostileNamesStayText")]),
    Fault("six-bit-minima", "src/tensor/ggml_blocks.cpp", "add(j + 4, t[j] | t[j + 4] >> 4 << 6);", "add(j + 4, t[j]);",
          [("llmq_unit_tensor", "Types/BlockBits.*"), ("llmq_golden_ggml_blocks", "Types/GgmlBlocks.*")]),
    Fault("block-candidates-start-over", "src/tensor/ggml_search.cpp", "lowest = select(better, foot, lowest);", "lowest = select(better, lowest, lowest);",
          [("llmq_golden_ggml_blocks", "Types/GgmlBlocks.*")]),
    Fault("wider-search-kept-unseen", "src/tensor/ggml_wide_search.cpp",
          "if (stored_error(layout, found[k], input) < stored_error(layout, fields[k], input)) fields[k] = found[k];",
          "if (stored_error(layout, found[k], input) >= 0) fields[k] = found[k];",
          [("llmq_unit_tensor", "Types/GgmlQuantizeBlocks.*NeverWorse*")]),
    # What is read.
    Fault("group-index", "src/tensor/quantized_matrix.cpp", "static_cast<std::size_t>(n * groups + g); const std::int64_t end",
          "static_cast<std::size_t>(n * groups); const std::int64_t end",
          [("llmq_unit_tensor", "QuantizedMatrix.*")]),
    Fault("shape-overflow", "src/io/safetensors.cpp", "checked_mul(elements, std::max<std::uint64_t>(extent, 1));",
          "std::optional<std::uint64_t>(elements * std::max<std::uint64_t>(extent, 1));", [("llmq_unit_io", "Safetensors*")]),
    # How it is quantized.
    Fault("scales-of-another-type", "src/quant/plan.cpp", "weight->view.dtype == DType::kF16 ? DType::kF16 : DType::kBF16;",
          "weight->view.dtype == DType::kF16 ? DType::kBF16 : DType::kBF16;", [("llmq_unit_quant", "Plan.ScalesHaveTheTypeOfTheCheckpoint")]),
    Fault("bias-not-divided", "src/quant/fold.cpp", "rounded_to((*bias)[r] / work.out_scale[r], written_dtype(stored));",
          "rounded_to((*bias)[r], written_dtype(stored));", [("llmq_unit_quant", "Fold.BiasesOfProducersAreDividedToo")]),
    Fault("least-salient-kept", "src/quant/salient_columns.cpp",
          "mean_absolute[static_cast<std::size_t>(a)] > mean_absolute[static_cast<std::size_t>(b)];",
          "mean_absolute[static_cast<std::size_t>(a)] < mean_absolute[static_cast<std::size_t>(b)];",
          [("llmq_unit_quant", "Salient.*")]),
    Fault("reader-dropped-from-fold", "src/model/model_spec.cpp", "{LinearRole::kQuery, LinearRole::kKey, LinearRole::kValue}, 1},",
          "{LinearRole::kQuery, LinearRole::kKey}, 1},",
          [("llmq_golden_models", "*FoldedModel*"), ("llmq_unit_model", "ModelSpec.FoldsNameEveryReader")]),
    Fault("zero-truncated", "src/quant/rounding.cpp", "clamp_code(nearest(-range.low / grid.scale), grid.top);",
          "clamp_code(std::max(0.0f, nearest(-range.low / grid.scale - 0.5f)), grid.top);", [("llmq_unit_quant", "Rtn.*")]),
    Fault("scale-not-inverted", "src/quant/rounding.cpp", "scratch + first, inverse + first, weight + first", "scratch + first, (inverse ? s : inverse) + first, weight + first",
          [("llmq_unit_quant", "Rounding.*")]),
    Fault("stale-group-weights", "src/quant/gptq.cpp", "current[i] -= x[i];", "current[i] -= 0 * x[i];", [("llmq_unit_quant", "*Orders*")]),
    Fault("error-not-relative", "src/quant/gptq.cpp", "factor.upper(i, j) / factor.upper(j, j);", "factor.upper(i, j) / factor.upper(i, i);",
          [("llmq_unit_quant", "*Orders*")]),
    Fault("refit-not-stored", "src/quant/group_descent.cpp",
          "stored_scale(scale[r] + slope[r] / curve[r], scheme_.scale_dtype);", "scale[r] + slope[r] / curve[r];",
          [("llmq_unit_quant", "Gptq.LosesLessThanRoundingUnderEveryScheme")]),
    Fault("group-index-by-place", "src/quant/gptq.cpp",
          "matrix.column_group[static_cast<std::size_t>(input.order.columns[p])] = input.order.group[p];",
          "matrix.column_group[p] = input.order.group[p];", [("llmq_unit_quant", "Gptq.*")]),
    # How it is computed and measured.
    Fault("causal-mask", "kernels/cpu/ops/attention.h", "const int64_t last = t.first_position + (first_row + r) / t.group - first_key;",
          "const int64_t last = t.first_position + (first_row + r) / t.group - first_key + 1;",
          [("llmq_kernels_backend", "*Attention.*cpu_scalar_t1*")], ["kernels/cpu/scalar/kernels.cpp"]),
    Fault("residual-dropped", "src/model/decoder_block.cpp", "context.backend.add(hidden.row_slice(first, count), y_view);", "static_cast<void>(y_view);",
          [("llmq_golden_models", "*GoldenModel.LogitsEqualTransformers*")]),
    Fault("rope-ramp-reversed", "src/model/rope.cpp", "1.0f - std::clamp(ramp, 0.0f, 1.0f);", "std::clamp(ramp, 0.0f, 1.0f);", [("llmq_unit_model", "Rope.*")]),
    Fault("first-scored", "src/evaluate/windows.cpp", "window.first_scored = protocol.context / 2 + 1;", "window.first_scored = protocol.context / 2;",
          [("llmq_unit_evaluate", "Windows.*")]),
    Fault("target-shifted", "src/evaluate/perplexity.cpp", "window.tokens.data() + row + 1, count", "window.tokens.data() + row, count",
          [("llmq_unit_evaluate", "Perplexity.*")]),
    Fault("special-token-eats-the-space", "src/runtime/generate.cpp", "if (is_special(token)) return {}; const std::int32_t pair[] = {previous, token};",
          "const std::int32_t pair[] = {previous, token};", [("llmq_unit_runtime", "GenerateText.SpecialTokensLeaveTheSpacesAroundThem")]),
    Fault("every-token-begins-a-text", "src/runtime/generate.cpp", "previous = token; return both", "return both",
          [("llmq_unit_runtime", "GenerateText.*")]),
    # Fallbacks and budgets.
    Fault("worse-than-rounding-kept", "src/quant/block_quantizer.cpp", "if (!(loss < report.loss)) return;",
          "if (loss < 1e300) return;", [("llmq_unit_quant", "Pipeline.WhatLosesMoreThanPlainRoundingIsRoundedPlainlyAndSaid")]),
    Fault("budget-overspent", "src/quant/budget_choice.cpp", "if (to.cost <= budget - from.cost)", "if (from.cost <= budget)",
          [("llmq_unit_quant", "BudgetChoice.*")]),
    Fault("fused-linears-parted", "src/quant/measure_candidates.cpp", "case LinearRole::kQuery: case LinearRole::kKey: case LinearRole::kValue: return 0;",
          "case LinearRole::kQuery: return 4; case LinearRole::kKey: case LinearRole::kValue: return 0;", [("llmq_unit_quant", "MixedPrecision.*")]),
    # What says where an output came from.
    Fault("digest-of-a-fresh-file-remembered", "src/io/digest_cache.cpp", "if (settled && file->stamp() == before)", "if (settled || file->stamp() == before)",
          [("llmq_unit_io", "DigestCacheTest.AFileThatWasJustWrittenIsNotRemembered")]),
    Fault("ctime-not-looked-at", "src/io/digest_cache.cpp", "return {s.device, s.inode, s.size, s.modified_ns, s.changed_ns};",
          "return {s.device, s.inode, s.size, s.modified_ns, 0};", [("llmq_unit_io", "DigestCacheTest.AnyChangeIsSeen")]),
    Fault("dot-dot-in-a-manifest", "src/export/manifest.cpp", "part == \".\" || part == \"..\"", "part == \".\"",
          [("llmq_unit_export", "VerifyTest.AHostileManifest*")]),
    Fault("extra-files-unseen", "src/export/verify.cpp", "if (one.expected != one.found)", "if (one.expected && one.expected != one.found)",
          [("llmq_unit_export", "VerifyTest.SaysWhatDiffers*:SignedOutput.AChangedMissing*")]),
    Fault("links-followed", "src/export/verify.cpp", "if (stamp.kind == FileKind::kRegular) into.files",
          "if (stamp.kind == FileKind::kRegular || (stamp.kind == FileKind::kSymlink && !io.is_directory(directory / entry))) into.files",
          [("llmq_unit_export", "VerifyTest.FollowsNoLink*")]),
    Fault("signature-not-checked", "src/export/signature.cpp", "verified = verified || (signature && key.verifies(encoded(kPayloadType, *payload), *signature));",
          "verified = verified || signature;", [("llmq_unit_export", "SignedOutput.NoBit*:SignedOutput.AnotherKey*")]),
    Fault("type-not-signed", "src/export/signature.cpp", "return fmt::format(\"DSSEv1 {} {} {} \", type.size(), type, payload.size()) + payload;", "static_cast<void>(type); return payload;",
          [("llmq_unit_export", "SignedOutput.AStatementMustAddUp")]),
    Fault("root-digest-not-checked", "src/export/signature.cpp", "!= root_digest(signed_files.files))", "!= root_digest(signed_files.files) && false)",
          [("llmq_unit_export", "SignedOutput.AStatementMustAddUp")]),
    Fault("layout-of-a-changed-file", "src/export/oci_layout.cpp", "known != recorded.end() && known->second != file.sha256", "known != recorded.end() && known->second.empty()",
          [("llmq_unit_export", "OciLayoutTest.RefusesWhatCannotBePacked")]),
    # How fast.
    Fault("rounds-ask-the-kernel", "src/base/threads.cpp", "  state.work = &work;", "  state.work = &work; ::sched_yield();",
          [("llmq_counters", "DecodeStep.NeedsNoSystemCall")]),
    Fault("step-copies-its-rows", "src/runtime/engine.cpp", "const BatchRows& rows = state.rows;", "const BatchRows rows = state.rows;",
          [("llmq_counters", "DecodeStep.AllocatesNothing")]),
    # What the runtime serves.
    Fault("key-without-parent", "src/runtime/kv_blocks.cpp", "std::string bytes(key.begin(), key.end());", "std::string bytes(key.begin(), key.begin());",
          [("llmq_unit_runtime", "KvBlocks.APrefix*:KvBlocks.Random*"), ("llmq_unit_runtime", "Scheduler.Random*")]),
    Fault("shared-page-written", "src/runtime/kv_blocks.cpp", "at(table.blocks.back()).references > 1;", "at(table.blocks.back()).references < 1;",
          [("llmq_unit_runtime", "KvBlocks.Samples*:KvBlocks.Random*")]),
    Fault("drafts-not-given-back", "src/runtime/scheduler.cpp", "blocks_.truncate(sequence.table, sequence.computed);", "",
          [("llmq_unit_runtime", "Scheduler.Random*")]),
    Fault("pages-freed-under-a-step", "src/runtime/scheduler.cpp", "if (in_flight) found->second.cancelled = true;", "if (!in_flight) found->second.cancelled = true;",
          [("llmq_unit_runtime", "Scheduler.ACancelled*")]),
    Fault("decodes-wait-for-prompts", "src/runtime/scheduler.cpp", "(pending(sequence) > 1 ? decoding_behind(place) : 0)", "0",
          [("llmq_unit_runtime", "Scheduler.DecodesGoOn*")]),
    Fault("waiting-passed", "src/runtime/scheduler.cpp", "starting = false; continue;", "continue;", [("llmq_unit_runtime", "Scheduler.NobodyWhoWaits*")]),
    Fault("blanks-before-blocks-kept", "src/tokenizer/jinja_lexer.cpp", "text = text.substr(0, line);", "text = text.substr(0);",
          [("llmq_unit_tokenizer", "ChatTemplate.BlanksAround*")]),
    Fault("loop-index-off-by-one", "src/tokenizer/jinja_operators.cpp", "if (name == \"index0\") return {loop->index};", "if (name == \"index0\") return {loop->index + 1};",
          [("llmq_golden_chat", "ChatTemplateGolden.*")]),
]
