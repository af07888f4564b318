#include "model/fitting_rows.h"

namespace llmq {

void FittingRows::halve(std::int64_t rows, const Error& error) {
  if (rows <= kFewest) {
    ErrorDetail detail = error.detail();
    detail.message += fmt::format(", with no more than {} rows of a chunk at a time", rows);
    detail.hint =
        "the same command goes on from the last finished block when the device has room, or on another of "
        "its kind; fewer samples "
        "(--set calibration.samples) need less";
    throw Error(error.kind(), std::move(detail));
  }
  most_ = std::max(kFewest, rows / 2);
}

std::optional<std::int64_t> FittingRows::news() {
  if (most_ == told_) return {};
  return told_ = most_;
}

}  // namespace llmq
