// Arrays of numbers that begin as zeros. Large ones lie in large pages where the system gives them
// (transparent_hugepage: madvise or always), and every page is cleared when it is touched first, by the
// thread that does so: squares of many channels are gigabytes, and their small pages take seconds to be
// cleared by one thread.
#pragma once
#include <algorithm>
#include <cstddef>
#include <memory>
#include <type_traits>

namespace llmq {

// Of 32 MiB or more pages of their own, below that from the heap, which hands the same memory out again.
void* take_zeroed(std::size_t bytes);  // std::bad_alloc where there is no memory
void give_zeroed(void* pointer, std::size_t bytes) noexcept;

template <class T>
class ZeroedNumbers {
  static_assert(std::is_arithmetic_v<T>);

 public:
  ZeroedNumbers() = default;
  explicit ZeroedNumbers(std::size_t count)
      : values_(static_cast<T*>(take_zeroed(count * sizeof(T))), Give{count}) {}
  ZeroedNumbers(const ZeroedNumbers& other) : ZeroedNumbers(other.size()) {
    std::copy(other.begin(), other.end(), begin());
  }
  ZeroedNumbers(ZeroedNumbers&& other) noexcept = default;
  ZeroedNumbers& operator=(ZeroedNumbers other) noexcept {
    values_ = std::move(other.values_);
    return *this;
  }
  ~ZeroedNumbers() = default;

  std::size_t size() const { return values_ == nullptr ? 0 : values_.get_deleter().count; }
  T* data() { return values_.get(); }
  const T* data() const { return values_.get(); }
  T* begin() { return data(); }
  T* end() { return data() + size(); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size(); }
  T& operator[](std::size_t i) { return values_[i]; }
  const T& operator[](std::size_t i) const { return values_[i]; }

 private:
  struct Give {
    std::size_t count = 0;
    void operator()(T* pointer) const noexcept { give_zeroed(pointer, count * sizeof(T)); }
  };
  std::unique_ptr<T[], Give> values_;
};

}  // namespace llmq
