// How many enumerators an enum has, and their names, as the compiler knows them: no list is kept beside the enum. For
// enums whose values are 0, 1, 2, ...
#pragma once
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace kfusion {
namespace enumerators_detail {

/// "kfusion::Reason::kGather"; "(kfusion::Reason)99" for a value without a name.
template <auto value>
constexpr std::string_view spelling() {
  constexpr std::string_view kBefore = "value = ";
  std::string_view text = __PRETTY_FUNCTION__;
  text.remove_prefix(text.find(kBefore) + kBefore.size());
  return text.substr(0, text.find_first_of(";]"));
}

constexpr bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

struct Name {
  std::array<char, 48> text{};
  std::size_t length = 0;
};

/// kMultipleConsumers as multiple_consumers.
template <auto value>
constexpr Name snake_case() {
  Name name;
  std::string_view from = spelling<value>();
  from.remove_prefix(from.rfind("::k") + 3);
  for (const char c : from) {
    if (is_upper(c) && name.length > 0) name.text[name.length++] = '_';
    name.text[name.length++] = is_upper(c) ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return name;
}

template <auto value>
inline constexpr Name kName = snake_case<value>();

template <class E, int i = 0>
constexpr int count() {
  constexpr char first = spelling<static_cast<E>(i)>().front();
  if constexpr (first == '(' || (first >= '0' && first <= '9'))
    return i;
  else
    return count<E, i + 1>();
}

}  // namespace enumerators_detail

template <class E>
inline constexpr int kEnumerators = enumerators_detail::count<E>();

/// "reduction_barrier" for Reason::kReductionBarrier.
template <class E>
constexpr std::string_view enumerator_name(E e) {
  constexpr auto kNames = []<int... i>(std::integer_sequence<int, i...>) {
    using enumerators_detail::kName;
    return std::array{std::string_view(kName<static_cast<E>(i)>.text.data(), kName<static_cast<E>(i)>.length)...};
  }(std::make_integer_sequence<int, kEnumerators<E>>());
  return kNames[static_cast<std::size_t>(e)];
}

}  // namespace kfusion
